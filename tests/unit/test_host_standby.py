"""A layer that a node only stands by for, in the host's memory: the bits of one that lies on the device."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from culm.pipeline.clip import SKIPPED
from culm.pipeline.instruction import Pass
from culm.pipeline.job import load_job
from culm.pipeline.tensors.raw import bytes_of
from culm.pipeline.tensors.values import Value
from culm.pipeline.tree import Block
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import CPU, Cuda, Device
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.worker.work import Apply, Arrange, Install, Reduce, Run, Save
from tests.late_device import Late
from tests.short import duty, unit
from tests.unit.test_handing_on import EXAMPLES

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
}


needs_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
PASSES: tuple[Pass, ...] = ("F", "B")


class Counting(Late):
    """It counts what is brought to it."""

    def __init__(self) -> None:
        super().__init__()
        self.brought = 0

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        self.brought += tensor.nbytes
        return super().here(tensor)


def held(device: Device, optimizer: str = "AdamW") -> HeldLayer:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).to(device.place)
    return HeldLayer(0, module, OPTIMIZERS[optimizer](module.parameters()), device)


def gradient(seed: int) -> Value:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"0.weight": (3, 5), "0.bias": (3,), "1.weight": (3,), "1.bias": (3,)}
    grads = tuple((f"grad.{name}", torch.randn(shape, generator=generator)) for name, shape in shapes.items())
    return Value((*grads, ("buffer.1.running_mean", torch.randn(3, generator=generator))))


def state(layer: HeldLayer) -> list[tuple[str, bytes]]:
    return [(name, bytes(bytes_of(tensor))) for name, tensor in layer.export().tensors]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_stepped_as_on_the_device(optimizer: str) -> None:
    there, other = held(Counting(), optimizer), held(Counting(), optimizer)
    other.go_home()
    assert other.is_home
    for step in range(4):
        for layer in (there, other):
            layer.apply(gradient(step), SKIPPED if step == 2 else 0.5, 0)
        assert other.is_home
        assert state(there) == state(other)
    other.come_here()
    other.apply(gradient(9), 1.0, 0)
    there.apply(gradient(9), 1.0, 0)
    assert state(there) == state(other)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@needs_a_card
def test_all_that_was_on_the_device_comes_back_to_it(optimizer: str) -> None:
    """Momenta stayed in the host's memory, and counts did not: the optimizer's next step raised."""
    layer = held(Cuda(torch.device("cuda")), optimizer)
    layer.apply(gradient(0), 1.0, 0)

    def places() -> list[tuple[str, str]]:
        assert layer.optimizer is not None
        kept = [(k, t) for entries in layer.optimizer.state.values() for k, t in entries.items()]
        named = [*layer.module.named_parameters(), *layer.module.named_buffers(), *kept]
        return [(name, tensor.device.type) for name, tensor in named if isinstance(tensor, torch.Tensor)]

    before, names = places(), [name for name, _ in layer.export().tensors]
    layer.go_home()
    assert {place for _, place in places()} == {"cpu"}
    assert [name for name, _ in layer.export().tensors] == names, "a checkpoint tells what lies beside a parameter"
    layer.come_here()
    assert places() == before
    layer.apply(gradient(1), 1.0, 0)


def test_it_comes_to_the_device_for_its_step_alone() -> None:
    device = Counting()
    layer = held(device)
    layer.go_home()
    layer.apply(gradient(0), SKIPPED, 0)
    assert device.brought == 0
    layer.apply(gradient(0), 1.0, 0)
    parameters = sum(p.nbytes for p in layer.module.parameters())
    assert device.brought >= 2 * parameters, "parameters and gradients"


def test_a_state_is_installed_and_given_away_from_there() -> None:
    source, copy = held(Late()), held(Late())
    for step in range(2):
        source.apply(gradient(step), 1.0, 0)
    copy.go_home()
    copy.install(source.export())
    assert copy.is_home
    before = state(copy)
    assert before == state(source)
    given = copy.export()
    copy.apply(gradient(5), 1.0, 0)
    assert [(name, bytes(bytes_of(tensor))) for name, tensor in given.tensors] == before


def test_on_a_processor_nothing_moves() -> None:
    layer = held(CPU)
    layer.go_home()
    assert not layer.is_home


def test_an_heir_computes_on_the_device_what_its_host_has_kept() -> None:
    """A standby of stage 1 takes part in a step as such, and then runs the stage."""
    changes = ["pipeline.stages=3", "pipeline.microbatches=1", "data.microbatch=8"]
    given = []
    for standby in ("host", "device"):
        job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, f"resilience.standby={standby}"])
        compute = Compute(job, ModelSource(job), Late())
        compute.warm_up()
        layers = range(4, 8)
        compute.do(Arrange(layers=tuple(layers), duties=(), stages=3, step=0, anew=True))
        assert [compute.layer(i).is_home for i in layers] == [standby == "host"] * 4
        for i in layers:
            parameters = compute.layer(i).module.named_parameters()
            names = [(f"grad.{name}", torch.full(p.shape, 0.1)) for name, p in parameters]
            compute.do(Apply(step=0, scale=1.0, gradients=((i, (Value(tuple(names)),)),)))
        compute.do(Install(7, 1, compute.layer(7).export(), "n1"))
        saved = [x.value for _, x in compute.do(Save(era=0, step=1, layers=tuple(layers), loss=0.5)).lent]
        compute.do(Arrange(layers=tuple(layers), duties=((duty(1), layers),), stages=3, step=1, anew=False))
        assert not any(compute.layer(i).is_home for i in layers)
        drawn = torch.randn(8, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
        taken = Value.activation(drawn, None), Value.gradients({0: drawn.detach()})
        results = [
            compute.do(Run(instruction=unit(1, op, 0), step=1, tenure=1, operands=(operand,)))
            for op, operand in zip(PASSES, taken, strict=True)
        ]
        for result in results:
            result.copied.wait()
        block = Block(0, 1)
        reduced = compute.do(Reduce(stage=1, step=1, block=block, leaves=True, tenures=((duty(1), 1),)))
        values = [x for x in (*(r.value for r in results), *(v for _, v in reduced.values), *saved) if x is not None]
        given.append([(name, bytes(bytes_of(tensor))) for value in values for name, tensor in value.tensors])
        compute.do(Arrange(layers=tuple(layers), duties=(), stages=3, step=1, anew=False))
        assert [compute.layer(i).is_home for i in layers] == [standby == "host"] * 4
    assert given[0] == given[1]

"""Devices behind one port: each keeps the same contract, and no other module knows which one it is."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.paced import WIDTH, job_file
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, load_job
from culm.pipeline.tensors.values import Value
from culm.pipeline.tree import Block
from culm.pipeline.user_code.devices import settle
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.copying import try_copying
from culm.stage_server.compute.device import CPU, VISIBLE, Cuda, Device, device_for, value_here, value_home
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.loan import Loan
from culm.stage_server.worker.work import Arrange, Reduce, Run, Save, Sum
from tests.late_device import GARBAGE, Late
from tests.short import duty, unit

ROOT = Path(__file__).parents[2]
PORT = ROOT / "stage_server" / "compute" / "device.py"
# What speaks to CUDA, or asks which device it is.
SPEAKS = re.compile(r"torch\.cuda|\.cuda\(|is_cuda|pin_memory|synchronize|device\.type|\.record_stream")

SETTINGS = {"steps": 2, "stages": 3, "microbatches": 1, "redundancy": "eager"}
needs_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
DEVICES = ["cpu", "late", pytest.param("cuda", marks=needs_a_card)]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    name: str = request.param
    return CPU if name == "cpu" else Late() if name == "late" else Cuda(torch.device("cuda"))


every_device = pytest.mark.parametrize("device", DEVICES, indirect=True)


# ---- the port --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "stage_server").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_one_module_speaks_to_cuda(path: Path) -> None:
    assert (SPEAKS.search(path.read_text()) is not None) == (path == PORT)


TENSORS = [
    torch.arange(6.0).reshape(2, 3),
    torch.arange(6.0).reshape(2, 3).T,
    torch.empty(0, 4),
    torch.tensor(7),
    torch.tensor([True, False]),
    torch.randn(5, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16),
    torch.tensor([1 + 2j, 3 - 4j]).conj(),
    torch.ones(1).expand(4),
    torch.arange(24.0).reshape(2, 3, 4)[:, 1:3, ::2].transpose(1, 2),
    torch.arange(8.0).reshape(2, 1, 4)[:, :, 1:].expand(2, 3, 3),
    torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
]


@every_device
def test_a_tensor_goes_to_the_device_and_comes_home_with_its_bits_and_strides(device: Device) -> None:
    there = [device.here(tensor) for tensor in TENSORS]
    assert all(tensor.device.type == device.place.type for tensor in there)
    home = [device.home(tensor) for tensor in there]
    device.copied().wait()
    for tensor, back in zip(TENSORS, home, strict=True):
        assert back.is_cpu
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride()
    assert [tensor.stride() for tensor in there] == [tensor.stride() for tensor in TENSORS]


@every_device
def test_an_event_is_of_what_was_given_before_it(device: Device) -> None:
    first = device.home(device.here(torch.ones(3)) * 2)
    event = device.copied()
    second = device.home(device.here(torch.ones(3)) * 3)
    event.wait()
    assert torch.equal(first, torch.full((3,), 2.0))
    device.copied().wait()
    event.wait()  # again: it has passed for good
    device.computed().wait()
    assert torch.equal(second, torch.full((3,), 3.0))


@every_device
def test_a_value_keeps_its_names_and_facts_on_the_way(device: Device) -> None:
    value = Value((("grad.a", torch.ones(2)), ("grad.b", torch.zeros(3))), squared_norms=(2.0,), tallies=(0.5,))
    back = value_home(device, value_here(device, value))
    device.copied().wait()
    assert [(name, tensor.tolist()) for name, tensor in back.tensors] == [("grad.a", [1, 1]), ("grad.b", [0, 0, 0])]
    assert (back.squared_norms, back.tallies) == ((2.0,), (0.5,))


@every_device
def test_a_seed_gives_the_same_numbers_again(device: Device) -> None:
    device.warm_up()
    drawn = []
    for _ in range(2):
        device.seed(1 << 62)
        drawn.append((torch.rand(4, device=device.place).tolist(), torch.rand(4).tolist()))
    assert drawn[0] == drawn[1]


@every_device
def test_its_memory_is_told(device: Device) -> None:
    memory = device.memory()
    assert 0 < memory.free <= memory.total


def test_the_cpu_copies_nothing() -> None:
    tensor = torch.ones(3)
    value = Value.single(tensor)
    assert CPU.here(tensor) is tensor
    assert CPU.home(tensor) is tensor
    assert value_here(CPU, value) is value
    assert value_home(CPU, value) is value


def test_the_late_device_is_late() -> None:
    """Else it would prove nothing."""
    device = Late()
    home = device.home(torch.ones(3))
    assert set(home.view(torch.uint8).tolist()) == {GARBAGE}
    device.copied().wait()
    assert torch.equal(home, torch.ones(3))


# ---- which one -------------------------------------------------------------------------------------------------------


def job_on(tmp_path: Path, device: str) -> Job:
    return load_job(job_file(tmp_path, forward=0.0, backward=0.0, **SETTINGS), [f"job.device={device}"])


def test_a_job_says_which_device_it_is(tmp_path: Path) -> None:
    assert device_for(job_on(tmp_path, "cpu")) is CPU


def test_on_a_card_torch_takes_deterministic_kernels_or_raises(tmp_path: Path) -> None:
    """Told to warn it takes an attention's backward that adds in the order in which threads come."""
    deterministic: Any = torch.utils.deterministic
    fills = deterministic.fill_uninitialized_memory
    try:
        settle(job_on(tmp_path, "cuda"))
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        deterministic.fill_uninitialized_memory = fills


@pytest.mark.parametrize("shown", ["", "-1"])
def test_a_node_that_is_shown_no_card_says_so(shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("torch reads the variable once, and has found a card")
    monkeypatch.setenv(VISIBLE, shown)
    with pytest.raises(JobError, match=rf"job\.device: {VISIBLE}='{shown}' leaves this node no CUDA device"):
        device_for(job_on(tmp_path, "cuda"))


# ---- who uses it -----------------------------------------------------------------------------------------------------


@every_device
def test_an_optimizer_is_tried_on_the_device(device: Device) -> None:
    try_copying(lambda p: torch.optim.AdamW(p, lr=0.1), [torch.zeros(3, 3)], "torch.optim:AdamW", device)


X = Value.activation(torch.ones(1, WIDTH, requires_grad=True), None)
GRADIENT = Value.gradients({0: torch.ones(1, WIDTH)})


def is_garbage(value: Value) -> bool:
    """Whether a tensor of it was not copied yet."""
    return any(set(tensor.reshape(-1).view(torch.uint8).tolist()) == {GARBAGE} for _, tensor in value.tensors)


def made(tmp_path: Path, device: Device) -> Compute:
    """A node that owns stage 1 of four and stands by for stage 2."""
    job = job_on(tmp_path, "cpu")
    compute = Compute(job, ModelSource(job), device)
    compute.warm_up()
    duties = (duty(1), range(1, 2)), (duty(2), range(2, 3))
    compute.do(Arrange(layers=(1, 2), duties=duties, stages=4, step=0, anew=True))
    return compute


def test_what_an_instruction_gives_is_whole_once_its_event_has_passed(tmp_path: Path) -> None:
    compute = made(tmp_path, Late())
    for run in (
        Run(instruction=unit(1, "F", 0), step=0, tenure=1, operands=(X,)),
        Run(instruction=unit(1, "B", 0), step=0, tenure=1, operands=(GRADIENT,), ships=1),
    ):
        result = compute.do(run)
        given = [value for value in (result.value, result.accumulated) if value is not None]
        assert len(given) == (2 if run.ships else 1)
        assert all(map(is_garbage, given))
        result.copied.wait()
        assert not any(map(is_garbage, given))


def test_all_other_work_gives_what_is_whole(tmp_path: Path) -> None:
    compute = made(tmp_path, Late())
    ahead = compute.do(Run(instruction=unit(2, "F", 0), step=0, tenure=-1, operands=(X,)))
    assert ahead.value is not None
    assert not is_garbage(ahead.value)
    assert ahead.kept_bytes > 0
    for op in ("F", "B"):
        compute.do(Run(instruction=unit(1, op, 0), step=0, tenure=1, operands=(X if op == "F" else GRADIENT,)))
    block = Block(0, 1)
    reduced = compute.do(Reduce(stage=1, step=0, block=block, leaves=True, tenures=((duty(1), 1),)))
    summed = compute.do(Sum(1, 1, 1, 0, ((0, ((block, reduced.values[0][1]),)),)))
    saved = compute.do(Save(era=0, step=0, layers=(1, 2), loss=0.5))
    lent = [(layer, loan.value) for layer, loan in saved.lent]
    for _, value in (*reduced.values, *summed.values, *lent):
        assert value.tensors
        assert not is_garbage(value)


def bytes_of(loan: Loan) -> bytes:
    return b"".join(payload for _, payload in loan.chunks())


@every_device
def test_state_is_lent_as_it_was(device: Device) -> None:
    """Also what the optimizer keeps in the host's memory beside parameters on a card, and changes in place."""
    torch.manual_seed(1)
    module = nn.Linear(5, 3).to(device.place)
    held = HeldLayer(0, module, torch.optim.AdamW(module.parameters(), lr=0.1), device)
    gradient = Value(tuple((f"grad.{name}", torch.ones(p.shape)) for name, p in module.named_parameters()))
    held.apply(gradient, 1.0, 0)
    before, loan = held.export(), held.lend()
    held.apply(gradient, 1.0, 0)
    assert bytes_of(loan) == bytes_of(Loan(before))
    assert bytes_of(held.lend()) != bytes_of(Loan(before))

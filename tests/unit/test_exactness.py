"""Stages run one after the other, as a pipeline runs them, give the plain loop's bits."""

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline import keys, tally, tree
from culm.pipeline.checkpoints.digest import weights_sha256
from culm.pipeline.clip import NORM_CHUNK, clip_scale
from culm.pipeline.job import Job, parse_job
from culm.pipeline.partition import partition
from culm.pipeline.schedule import timetable
from culm.pipeline.tally import in_order
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import header_of
from culm.pipeline.ties import Addend, addends
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.layer_shapes import LayerShapes
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.stage import Stage, merged
from culm.stage_server.streams.stream_bounds import RunShape, tensor_problem
from tests.unit.test_wire import through_the_wire


def gradient_of(stages: Sequence[Stage]) -> dict[Addend, Value]:
    """Of one stage in all pipelines."""
    return merged(stages, tree.Block(0, len(stages)), len(stages))


def run_of(job: Job, source: ModelSource, held: Sequence[HeldLayer]) -> RunShape:
    """What a node expects of its peers, of layers as they are built: the check compares their sketches with these."""
    pipeline = job.pipeline
    return RunShape(
        pipelines=pipeline.pipelines,
        microbatches=pipeline.microbatches,
        steps=job.job.steps,
        layers=tuple(LayerShapes.of(layer.module) for layer in held),
        ties=source.ties,
        tally_size=job.train.tally_size,
    )


def whole_sums(
    held: Sequence[HeldLayer], stages: Iterable[Sequence[Stage]], clips: bool, run: RunShape
) -> dict[int, Value]:
    """By bucket, which is a layer. ``stages``: each in all pipelines."""
    given: dict[Addend, Value] = {}
    for each in stages:
        given |= gradient_of(each)
        block = tree.Block(0, len(each))
    # What a peer would be sent is what it expects of the job's code.
    for (bucket, use), value in given.items():
        key = keys.partial(0, 0, 0, bucket, block, use)
        assert not (wrong := tensor_problem(key, header_of(value), run)), wrong
    found = {}
    for layer in held:
        uses = [{block: given[addend]} for addend in sorted(given) if addend.bucket == layer.index]
        found[layer.index] = layer.sum_up(uses, len(block.pipelines), clips) if len(uses) > 1 else uses[0][block]
    return found


def norms_of(values: Mapping[int, Value]) -> list[float]:
    """The squared norms of layers, in their order; each is one bucket."""
    return [in_order(values[layer].squared_norms) for layer in sorted(values)]


class Block(nn.Sequential):
    """A linear layer with dropout, and BatchNorm or LayerNorm."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__(nn.Linear(8, 8), nn.BatchNorm1d(8) if batch_norm else nn.LayerNorm(8), nn.Dropout(0.2))


class Shared(nn.Module):
    """One gradient is that of two parameters and of the input alike, a parameter is used twice, and some never."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(3, 8)), nn.Parameter(torch.randn(3, 8))
        self.twice, self.unused = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [3, 8]
        y: torch.Tensor = self.twice(torch.tanh(self.twice(x + self.first + self.second)))
        return (x + y).view_as(x)


class Conv(nn.Sequential):
    def __init__(self) -> None:
        inner = [nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 2, 3, padding=1), nn.GELU(), nn.Flatten()]
        super().__init__(*inner, nn.LayerNorm(8))


def varied_layers() -> list[Any]:
    attention = partial(nn.TransformerEncoderLayer, 8, 2, 16)
    return [partial(nn.Linear, 8, 8), Shared, Conv, attention, Shared, partial(nn.Linear, 8, 4)]


class Careless(nn.Module):
    """Draws from Python's and numpy's generators as well, and hands on complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8) + 1j * torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        return x * self.weight * (1.0 + 0.1 * random.random() + 0.1 * float(np.random.rand()))


class Real(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8], complex
        return torch.view_as_real(x).sum(-1)


def layers(count: int) -> list[Any]:
    """Every second block has BatchNorm; as constructors and as modules in turn."""
    made = [partial(Block, batch_norm=bool(i % 2)) if i % 3 else Block(bool(i % 2)) for i in range(count - 1)]
    return [*made, partial(nn.Linear, 8, 4)]


def plain_layers(count: int) -> list[Any]:
    return [*[partial(nn.Linear, 8, 8)] * (count - 1), partial(nn.Linear, 8, 4)]


def wide_layers(count: int) -> list[Any]:
    """The gradients of two weights have more elements than one chunk of a norm."""
    return [
        partial(nn.Linear, 8, NORM_CHUNK // 8 + 100),
        partial(nn.Linear, NORM_CHUNK // 8 + 100, 8),
        *plain_layers(count),
    ]


def careless_layers(count: int) -> list[Any]:
    return [partial(nn.Linear, 8, 8), *[Careless, Real] * count, partial(nn.Linear, 8, 4)]


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(50, 8, generator=generator), torch.randint(0, 4, (50,), generator=generator))


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples made and changed with whatever generator is at hand."""

    def __init__(self) -> None:
        self.x, self.y = torch.randn(50, 8), torch.randint(0, 4, (50,))

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] * random.random() + torch.rand(8) * float(np.random.rand()), self.y[index]


JOB = """
[job]
steps = 4
seed = 7
[model]
layers = "tests.unit.test_exactness:layers"
args = {{ count = {layers} }}
[data]
dataset = "tests.unit.test_exactness:dataset"
microbatch = 3
[train]
loss = "torch.nn.functional:cross_entropy"
optimizer = "{optimizer}"
optimizer_args = {{ {arguments} }}
{clip}
[pipeline]
stages = {stages}
microbatches = {microbatches}
"""

ADAMW = ("torch.optim:AdamW", "lr = 1e-2")
NADAM = ("torch.optim:NAdam", "lr = 1e-2")
ADAGRAD = ("torch.optim:Adagrad", "lr = 1e-2")
SGD = ("torch.optim:SGD", "lr = 0.1, momentum = 0.9")


def make_job(stages: int, microbatches: int, optimizer: tuple[str, str], clip: bool, count: int) -> Job:
    text = JOB.format(
        layers=count,
        optimizer=optimizer[0],
        arguments=optimizer[1],
        clip="clip_norm = 0.5" if clip else "",
        stages=stages,
        microbatches=microbatches,
    )
    return parse_job(text)


def run_stages(job: Job, held: list[HeldLayer], source: ModelSource, steps: range) -> list[float]:
    """Every stage in this process, in the order of the timetable."""
    count = job.pipeline.stages
    ranges = partition([1.0] * source.layer_count, count)
    stages = [
        Stage(job, 0, held[first:end], first == 0, end == source.layer_count, source.loss, job.schedule.splits_at(s))
        for s, (first, end) in enumerate(ranges)
    ]
    run = run_of(job, source, held)
    layout = addends([range(i, i + 1) for i in range(source.layer_count)], source.ties)
    for layer, own in zip(held, layout, strict=True):
        layer.cut.arrange(own)
    data = Microbatches(job, source.dataset())
    losses = []
    for step in steps:
        for stage in stages:
            stage.begin_step(step)
        outputs: dict[tuple[int, int], Any] = {}
        gradients: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
        for slot in timetable([range(count)], job.schedule):
            s, m = slot.instruction.stage, slot.instruction.microbatch
            x, target = data.microbatch(step, 0, m)
            if slot.instruction.op == "F":
                operand = x if s == 0 else outputs[s - 1, m]
                output = stages[s].forward(m, operand, target if s == count - 1 else None)
                outputs[s, m] = through_the_wire(Value.activation(output), 1 << 10).pytree()
            elif slot.instruction.op == "W":
                stages[s].backward_of_parameters(m)
            else:
                made = Value.gradients(stages[s].backward(m, gradients.get((s + 1, m), {})))
                gradients[s, m] = through_the_wire(made, 1 << 10).by_place()
        reduced = whole_sums(held, [[stage] for stage in stages], job.train.clip_norm is not None, run)
        tallies, size = reduced[source.layer_count - 1].tallies, job.train.tally_size
        scale = clip_scale(norms_of(reduced), job.train.clip_norm, tally.counted(tallies, size, 1))
        losses.append(tally.loss(tallies, size, 1))
        for layer in held:
            layer.apply(layer.cut.joined([reduced[x.bucket] for x in layout[layer.index]]), scale, step)
    return losses


def build_all(source: ModelSource) -> list[HeldLayer]:
    return [HeldLayer.build(source, i, CPU) for i in range(source.layer_count)]


def digest(held: list[HeldLayer]) -> str:
    return weights_sha256([(layer.index, layer.module.state_dict()) for layer in held])


def gives_the_plain_loops_bits(job: Job) -> None:
    source = ModelSource(job)
    held = build_all(source)
    losses = run_stages(job, held, source, range(job.job.steps))
    plain = run_plain(job)
    assert [x.hex() for x in losses] == [x.hex() for x in plain.losses]
    assert digest(held) == plain.sha256


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
@pytest.mark.parametrize(("optimizer", "clip"), [(ADAMW, True), (ADAMW, False), (SGD, True), (SGD, False)])
def test_the_calm_pipeline_is_the_plain_loop(
    stages: int, microbatches: int, optimizer: tuple[str, str], clip: bool
) -> None:
    job = make_job(stages, microbatches, optimizer, clip, count=7)
    gives_the_plain_loops_bits(job)


def test_norms_of_large_layers_are_the_plain_loops() -> None:
    job = make_job(2, 2, ADAMW, True, count=1)
    model = job.model.model_copy(update={"layers": "tests.unit.test_exactness:wide_layers"})
    gives_the_plain_loops_bits(job.model_copy(update={"model": model}))


@pytest.mark.parametrize("layers", ["layers", "varied_layers", "careless_layers"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_backwards_in_two_halves_give_the_same_bits(stages: int, layers: str) -> None:
    job = make_job(stages, 5, ADAMW, True, count=6)
    args = {"varied_layers": {}, "careless_layers": {"count": 2}}.get(layers, job.model.args)
    model = job.model.model_copy(update={"layers": f"tests.unit.test_exactness:{layers}", "args": args})
    split = job.pipeline.model_copy(update={"schedule": "zb-h1"})
    job = job.model_copy(update={"model": model, "pipeline": split})
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("optimizer", [ADAMW, SGD, NADAM, ADAGRAD])
def test_a_copy_made_in_the_middle_of_a_step_goes_on_alike(optimizer: tuple[str, str]) -> None:
    """Export takes the state of the step's beginning, whatever forwards have done to buffers since."""
    job = make_job(2, 3, optimizer, True, count=5)
    source = ModelSource(job)
    held = build_all(source)
    run_stages(job, held, source, range(2))
    runner = Stage(job, 0, held, True, True, source.loss)
    runner.begin_step(2)
    x, target = Microbatches(job, source.dataset()).microbatch(2, 0, 0)
    runner.forward(0, x, target)
    copies = build_all(ModelSource(job))
    assert digest(copies) != digest(held), "the copies are copies, and behind"
    for layer, copy in zip(held, copies, strict=True):
        copy.install(layer.export())
    run_stages(job, copies, source, range(2, 4))
    assert digest(copies) == run_plain(job).sha256


def test_work_done_again_gives_the_same_bits() -> None:
    """A step begun a second time starts from the step's beginning: same random numbers, same buffers."""
    job = make_job(1, 3, ADAMW, True, count=4)
    source = ModelSource(job)
    held = build_all(source)
    runner = Stage(job, 0, held, True, True, source.loss)
    data = Microbatches(job, source.dataset())
    runner.begin_step(0)
    for m in range(2):
        runner.forward(m, *data.microbatch(0, 0, m))
    runner.backward(0, {})
    run_stages(job, held, source, range(4))
    assert digest(held) == run_plain(job).sha256


def test_an_heir_goes_on_from_shipped_gradients() -> None:
    """And one that has to give a result again of a microbatch that is in them changes none."""
    job = make_job(1, 4, ADAMW, True, count=3)
    job = job.model_copy(
        update={"model": job.model.model_copy(update={"layers": "tests.unit.test_exactness:plain_layers"})}
    )
    source = ModelSource(job)
    data = Microbatches(job, source.dataset())
    stages = [Stage(job, 0, build_all(source), True, True, source.loss) for _ in range(3)]
    owner, heir, whole = stages
    for stage in stages:
        stage.begin_step(0)
    for m in range(4):
        for stage in (owner, whole) if m < 2 else (heir, whole):
            stage.forward(m, *data.microbatch(0, 0, m))
            stage.backward(m, {})
        if m == 1:
            owner.forward(2, *data.microbatch(0, 0, 2))  # forwards are ahead
            shipped = owner.accumulated(2)
            assert shipped is not None
            heir.resume(2, shipped)
            heir.forward(1, *data.microbatch(0, 0, 1))
            heir.backward(1, {}, accumulates=False)
    for index, value in gradient_of([whole]).items():
        mine = gradient_of([heir])[index]
        assert mine.tallies == value.tallies
        assert mine.squared_norms == value.squared_norms
        for (name, a), (other, b) in zip(mine.tensors, value.tensors, strict=True):
            assert name == other
            assert torch.equal(a, b)


def test_stages_whose_forwards_change_buffers_ship_nothing() -> None:
    job = make_job(1, 2, SGD, False, count=3)
    source = ModelSource(job)
    stage = Stage(job, 0, build_all(source), True, True, source.loss)
    stage.begin_step(0)
    stage.forward(0, *Microbatches(job, source.dataset()).microbatch(0, 0, 0))
    stage.backward(0, {})
    assert stage.accumulated(1) is None


def test_a_layer_in_half_precision_is_copied_with_its_optimizer_state_as_it_is() -> None:
    """NAdam keeps a product in float32 beside bfloat16 parameters: casting it would change the bits."""

    def layer() -> HeldLayer:
        torch.manual_seed(0)
        module = nn.Linear(8, 8, dtype=torch.bfloat16)
        return HeldLayer(0, module, torch.optim.NAdam(module.parameters(), lr=0.013), CPU)

    def train(held: HeldLayer, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            gradients = tuple((f"grad.{n}", torch.randn_like(p)) for n, p in held.module.named_parameters())
            held.apply(Value(gradients), 1.0, 0)

    held, copy = layer(), layer()
    train(held, range(3))
    copy.install(held.export())
    train(held, range(3, 20))
    train(copy, range(3, 20))
    assert digest([copy]) == digest([held])


def test_random_numbers_from_anywhere_are_the_same_on_every_node() -> None:
    """A dataset and layers that draw from torch's, Python's and numpy's generators; complex activations."""
    job = make_job(3, 3, ADAMW, True, count=2)
    job = job.model_copy(
        update={
            "model": job.model.model_copy(update={"layers": "tests.unit.test_exactness:careless_layers"}),
            "data": job.data.model_copy(update={"dataset": "tests.unit.test_exactness:Augmented"}),
        }
    )
    plain = run_plain(job)
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    source = ModelSource(job)
    held = build_all(source)
    losses = run_stages(job, held, source, range(job.job.steps))
    assert losses == plain.losses
    assert digest(held) == plain.sha256


@pytest.mark.parametrize("clips", [False, True])
def test_a_gradients_norm_is_taken_only_where_the_job_clips(clips: bool) -> None:
    job = make_job(1, 1, SGD, clips, count=3)
    source = ModelSource(job)
    stage = Stage(job, 0, build_all(source), True, True, source.loss)
    stage.begin_step(0)
    stage.forward(0, *Microbatches(job, source.dataset()).microbatch(0, 0, 0))
    stage.backward(0, {})
    assert any(value.squared_norms for value in gradient_of([stage]).values()) is clips


@pytest.mark.parametrize("order", range(4))
def test_pipelines_that_alternate_keep_their_own_buffers_and_gradients(order: int) -> None:
    """Of one stage on one node, in whatever order their instructions come (rule 21)."""
    job = make_job(1, 3, ADAMW, True, count=4)
    job = job.model_copy(update={"pipeline": job.pipeline.model_copy(update={"pipelines": 3})})
    source = ModelSource(job)
    held, data, draw = build_all(source), Microbatches(job, source.dataset()), random.Random(order)
    run = run_of(job, source, held)
    stages = [Stage(job, p, held, True, True, source.loss) for p in range(3)]
    for step in range(job.job.steps):
        left = [[(op, m) for m in range(3) for op in "FB"] for _ in stages]
        for p, stage in enumerate(stages):
            stage.begin_step(step)
            if draw.random() < 0.5:  # forwards ahead of backwards
                left[p].sort(key=lambda one: one[0] == "B")
        while any(left):
            p = draw.choice([p for p, mine in enumerate(left) if mine])
            op, m = left[p].pop(0)
            if op == "F":
                stages[p].forward(m, *data.microbatch(step, p, m))
            else:
                stages[p].backward(m, {})
        values = whole_sums(held, [stages], job.train.clip_norm is not None, run)
        scale = clip_scale(norms_of(values), job.train.clip_norm)
        for layer in held:
            layer.apply(values[layer.index], scale, 0)
    assert digest(held) == run_plain(job).sha256

"""Stages in one process, run one after the other as a pipeline runs them, and the plain loop beside them."""

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline import keys, tally, tree
from culm.pipeline.checkpoints.digest import weights_sha256
from culm.pipeline.clip import NORM_CHUNK, SKIPPED, clip_scale
from culm.pipeline.job import Job, parse_job
from culm.pipeline.partition import partition
from culm.pipeline.schedule import timetable
from culm.pipeline.tally import in_order
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import header_of
from culm.pipeline.ties import Addend, addends
from culm.pipeline.user_code.data import EvaluatedMicrobatches, Microbatches, dataset_of
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
        tally=job.tally_form,
        evaluations=job.evaluations,
    )


def whole_sums(
    held: Sequence[HeldLayer], stages: Iterable[Sequence[Stage]], clips: bool, run: RunShape, step: int = 0
) -> dict[int, Value]:
    """By bucket, which is a layer. ``stages``: each in all pipelines."""
    given: dict[Addend, Value] = {}
    for each in stages:
        given |= gradient_of(each)
        block = tree.Block(0, len(each))
    # What a peer would be sent is what it expects of the job's code.
    for (bucket, use), value in given.items():
        key = keys.partial(0, step, 0, bucket, block, use)
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
layers = "tests.unit.exactness:layers"
args = {{ count = {layers} }}
[data]
dataset = "tests.unit.exactness:dataset"
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


def sent(output: Any) -> Any:
    """A stage's output as the next one has it."""
    return through_the_wire(Value.activation(output, None), 1 << 10).output_and_target()[0]


def evaluate(job: Job, stages: Sequence[Stage], step: int) -> None:
    """All that the step evaluates, stage by stage."""
    for m in range(job.evaluations.in_step(step, job.job.steps)):
        x, target = EvaluatedMicrobatches(job, dataset_of(job, "evaluate")).microbatch(step, 0, m)
        for stage in stages:
            output = stage.evaluate(m, x, target if stage is stages[-1] else None)
            x = sent(output) if output is not None else None


def run_stages(
    job: Job,
    held: list[HeldLayer],
    source: ModelSource,
    steps: range,
    evaluations: dict[int, dict[str, float]] | None = None,
    metrics: list[dict[str, float]] | None = None,
) -> list[float]:
    """Every stage in this process, in the order of the timetable; the closing step too, if it is among the steps.

    An evaluation comes in the middle of its step, into ``evaluations``; into ``metrics`` comes what each step measures.
    """
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
        slots = timetable([range(count)], job.schedule) if step < job.job.steps else ()
        for place, slot in enumerate(slots):
            if place == len(slots) // 2:
                evaluate(job, stages, step)
            s, m = slot.instruction.stage, slot.instruction.microbatch
            x, target = data.microbatch(step, 0, m)
            if slot.instruction.op == "F":
                operand = x if s == 0 else outputs[s - 1, m]
                output = stages[s].forward(m, operand, target if s == count - 1 else None)
                outputs[s, m] = sent(output)
            elif slot.instruction.op == "W":
                stages[s].backward_of_parameters(m)
            else:
                made = Value.gradients(stages[s].backward(m, gradients.get((s + 1, m), {})))
                gradients[s, m] = through_the_wire(made, 1 << 10).by_place()
        if step == job.job.steps:
            evaluate(job, stages, step)
        reduced = whole_sums(held, [[stage] for stage in stages], job.train.clip_norm is not None, run, step)
        form = job.tally_form
        evaluated = job.evaluations.in_step(step, job.job.steps) * form.evaluated
        tallies, told = tally.parted(reduced[source.layer_count - 1].tallies, evaluated, 1)
        if told and evaluations is not None:
            evaluations[step] = dict(zip(("loss", *form.metrics), tally.means(told, form.evaluated, 1), strict=True))
        scale = SKIPPED
        if step < job.job.steps:
            scale = clip_scale(norms_of(reduced), job.train.clip_norm, tally.counted(tallies, form, 1))
            losses.append(tally.loss(tallies, form, 1))
            if metrics is not None:
                metrics.append(dict(zip(form.measured, tally.measured(tallies, form, 1), strict=True)))
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
    evaluations: dict[int, dict[str, float]] = {}
    metrics: list[dict[str, float]] = []
    losses = run_stages(job, held, source, range(job.evaluations.end(job.job.steps)), evaluations, metrics)
    plain = run_plain(job)
    assert evaluations == plain.evaluations
    assert metrics == plain.metrics
    assert [x.hex() for x in losses] == [x.hex() for x in plain.losses]
    assert digest(held) == plain.sha256

"""Layers that leave while the last backward of a block runs have the plain loop's bits."""

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from culm.oracle.plain_loop import run_plain
from culm.pipeline.clip import clip_scale
from culm.pipeline.errors import JobError
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.job import Job
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import CPU, Device, Event
from culm.stage_server.compute.layer import HeldLayer, Values
from culm.stage_server.compute.stage import Stage, merged, merged_layer
from culm.stage_server.worker.work import Arrange, Reduce, Run
from tests.late_device import Late
from tests.unit.exactness import SGD, build_all, digest, make_job, norms_of


class Checkpointed(nn.Module):
    """Runs its forward once more within the backward, part of it in a graph of its own."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        y: torch.Tensor = checkpoint(lambda z: torch.tanh(self.inner(z)), self.outer(x), use_reentrant=self._reentrant)
        return y + x


class OnAThread(nn.Module):
    """Makes the part of its graph that leads to its weight on another thread, where nodes are counted anew."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: made.append(self.weight * 2.0))
        thread.start()
        thread.join()
        return x @ made[0]


def overwriting_layers() -> list[Any]:
    """Layers that write over what they are given, also over a view."""
    linear, relu = partial(nn.Linear, 8, 8), partial(nn.ReLU, inplace=True)
    return [linear, relu, linear, partial(nn.Unflatten, 1, (2, 4)), relu, nn.Flatten, linear, partial(nn.Linear, 8, 4)]


def checkpointed_layers() -> list[Any]:
    made = [partial(Checkpointed, True), partial(Checkpointed, False)]
    return [partial(nn.Linear, 8, 8), *made, *made, partial(nn.Linear, 8, 4)]


def empty_layers() -> list[Any]:
    """Some without parameters, and the first two without a gradient of their output."""
    linear = partial(nn.Linear, 8, 8)
    return [nn.Identity, nn.Identity, linear, nn.Identity, nn.Tanh, linear, nn.Identity, partial(nn.Linear, 8, 4)]


def threaded_layers() -> list[Any]:
    return [partial(nn.Linear, 8, 8), OnAThread, partial(nn.Linear, 8, 4)]


def job_of(layers: str, pipelines: int, microbatches: int) -> Job:
    job = make_job(1, microbatches, SGD, True, count=4)
    args = {"layers": {"count": 6}, "careless_layers": {"count": 2}}.get(layers.rpartition(":")[2], {})
    model = job.model.model_copy(update={"layers": layers, "args": args})
    pipeline = job.pipeline.model_copy(update={"pipelines": pipelines})
    return job.model_copy(update={"model": model, "pipeline": pipeline})


class OneNode:
    """All of a model in all pipelines. ``left``: the layers that left within the last backward of the last step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        source = ModelSource(job)
        self.held = build_all(source)
        self.left: list[int] = []
        self._pipelines = job.pipeline.pipelines
        self._stages = [Stage(job, p, self.held, True, True, source.loss) for p in range(self._pipelines)]
        self._data = Microbatches(job, source.dataset())

    def step(self, step: int) -> None:
        block, values = Block(0, self._pipelines), dict[Addend, Value]()

        def through(layer: HeldLayer) -> None:
            values.update(merged_layer(self._stages, layer, block, self._pipelines))

        last = self.job.pipeline.microbatches - 1
        for stage in self._stages:
            stage.begin_step(step)
        for p, stage in enumerate(self._stages):
            for m in range(last + 1):
                stage.forward(m, *self._data.microbatch(step, p, m))
            for m in range(last + 1):
                completes = p == self._pipelines - 1 and m == last
                stage.backward(m, {}, through=through if completes else None)
        self.left = [layer for layer, _ in values]
        values |= merged(self._stages, block, self._pipelines, set(self.left))
        reduced = {layer: value for (layer, _), value in values.items()}
        scale = clip_scale(norms_of(reduced), self.job.train.clip_norm)
        for layer in self.held:
            layer.apply(reduced[layer.index], scale, 0)


def blocks_of(job: Job, device: Device, by_layer: bool) -> dict[Addend, Value]:
    """The gradient of the first two of three pipelines, by layer, whole; ``by_layer``: while their last backward runs,
    where the device does that.
    """
    compute, values = Compute(job, ModelSource(job), device), dict[Addend, Value]()
    duties = [Duty(p, 0) for p in range(2)]
    tenures = tuple((duty, 1) for duty in duties)
    ranges = tuple((duty, range(6)) for duty in duties)
    compute.do(Arrange(layers=tuple(range(6)), duties=ranges, stages=1, step=0, anew=True))

    def leaving(work: Reduce[Value], layer: int, given: Values, copied: Event) -> None:
        copied.wait()
        values.update(given)

    compute.leaving = leaving
    work: Reduce[Value] = Reduce(stage=0, step=0, block=Block(0, 2), leaves=True, tenures=tenures)
    for duty in duties:
        for instruction in job.schedule.order(duty, 1):
            completes = work if by_layer and instruction == Instruction(duties[1], "B", 1) else None
            compute.do(Run(instruction=instruction, step=0, tenure=1, completes=completes))
    left = [layer for layer, _ in values]
    assert sorted(left) == ([1, 2, 3, 4, 5] if by_layer else [])
    return values | dict(compute.do(replace(work, left=frozenset(left))).values)


HERE, THERE = "tests.unit.test_by_layer", "tests.unit.exactness"


@pytest.mark.parametrize("pipelines", [1, 3])
@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize(
    ("layers", "left"),
    [
        (f"{THERE}:layers", [5, 4, 3, 2, 1]),
        (f"{THERE}:varied_layers", [5, 4, 3, 2, 1]),
        (f"{THERE}:careless_layers", [5, 4, 3, 2, 1]),
        (f"{HERE}:overwriting_layers", [7, 6, 5, 4, 3, 2, 1]),
        (f"{HERE}:checkpointed_layers", [5, 4, 3, 2, 1]),
        (f"{HERE}:empty_layers", [7, 6, 5, 4, 3]),
    ],
)
def test_layers_that_leave_early_have_the_plain_loops_bits(
    layers: str, left: list[int], pipelines: int, microbatches: int
) -> None:
    node = OneNode(job_of(layers, pipelines, microbatches))
    for step in range(node.job.job.steps):
        node.step(step)
        assert node.left == left, "the last layer first, and the first one never"
    assert digest(node.held) == run_plain(node.job).sha256


@pytest.mark.parametrize("device", [CPU, Late()], ids=["cpu", "late"])
def test_a_layer_that_leaves_is_whole_once_its_event_has_passed(device: Device) -> None:
    job = job_of(f"{THERE}:layers", 3, 2)
    early, after = (blocks_of(job, device, by_layer) for by_layer in (True, False))
    assert sorted(early) == sorted(after) == [Addend(layer) for layer in range(6)]
    for addend, value in after.items():
        assert early[addend].tallies == value.tallies
        for (name, one), (other, another) in zip(early[addend].tensors, value.tensors, strict=True):
            assert name == other
            assert torch.equal(one, another)


def test_a_layer_whose_gradient_comes_too_late_ends_the_job() -> None:
    """The first layer has not left then, so nobody has a whole gradient that is wrong."""
    node = OneNode(job_of(f"{HERE}:threaded_layers", 1, 1))
    with pytest.raises(JobError, match="layer 1 gets a gradient after"):
        node.step(0)

"""Tensor work gives the same bits wherever it is done: here, or by a worker that has nothing but the task."""

from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any

import pytest
import torch
from torch.nn import functional

from culm.graphs import GCN, Chunk, GraphLayer, add_up_messages
from culm.graphs.datasets import blocks
from culm.oracle.plain_graph import GraphPasses
from culm.pipeline.errors import JobError
from culm.pipeline.job import with_values
from culm.pipeline.tensors.layout import ALIGNMENT
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import dataset_of
from culm.pipeline.user_code.graph.chunks import ChunkedGraph
from culm.pipeline.user_code.graph.layer import VERTEX, Runs
from culm.pipeline.user_code.graph.tasks import Task, do, seeded
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.graph_stage import GraphStage
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.tensor_work.aside import Aside
from culm.stage_server.tensor_work.desk import Desk
from tests.hostile.test_addresses import Looks
from tests.unit.test_graph_chunks import CHUNKS, VERTICES, job_of


def on_random_half(output: torch.Tensor, chunk: Chunk) -> tuple[torch.Tensor, int]:
    """A loss over other vertices each epoch."""
    some = chunk.train & (torch.rand(chunk.size) < 0.5)
    return functional.cross_entropy(output[some], chunk.labels[some], reduction="sum"), int(some.sum())


def share_drawn(output: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """A metric that draws as well."""
    return torch.rand(()) * output.sum()


def test_what_the_loss_draws_depends_on_epoch_and_chunk_alone() -> None:
    """A worker does the last layer, so the server's generator is left anywhere."""
    changed = {"graph.layers": 1, "model.args": {"sizes": [6, 3]}, "train.loss": f"{__name__}:on_random_half"}
    job = with_values(job_of(), {**changed, "train.metrics": {"drawn": f"{__name__}:share_drawn"}})
    source, graph = ModelSource(job), dataset_of(job)
    layer = HeldLayer.build(source, 0, CPU)
    plain = GraphPasses(job, source, [layer.module], list(layer.module.parameters())).passes(0)

    def elsewhere(index: int, seed_of: Callable[[str], int]) -> Runs:
        def run(module: GraphLayer, function: str, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
            found = seeded(seed_of)(module, function, arguments)
            torch.seed()
            return found

        return run

    found = []
    for p in range(CHUNKS):
        stage = GraphStage(job, graph, p, layer, True, True, source.loss, source.learning_rate)
        stage.begin_step(0)
        stage.forward((), elsewhere)
        found.append(stage.tallies())
    assert [told[0] for told in found] == plain.losses
    assert [told[2] for told in found] == [total for total, _ in plain.measured["drawn"]]


class SharedLinear(GraphLayer):
    """Its two functions train the same parameters."""

    by_edge = wants_own = True

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs, outputs)

    def apply_edge(self, *ends: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.tanh(self.linear(ends[0])) * self.linear(ends[1])
        return found

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = values[0] + self.linear(values[1])
        return found


class BySource(GraphLayer):
    """Makes a message for each source: what it takes is given to a function as it is, and twice used there."""

    by_edge = wants_own = True

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.value, self.gate = torch.nn.Linear(inputs, outputs), torch.nn.Linear(inputs, outputs)
        self.own = torch.nn.Linear(inputs, outputs)

    def scatter(self, chunk: Chunk, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x,)

    def apply_edge(self, *ends: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.value(ends[0])) * torch.sigmoid(self.gate(ends[0]))

    def gather(self, chunk: Chunk, values: torch.Tensor) -> torch.Tensor:
        return add_up_messages(chunk, values.index_select(0, chunk.sources))

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = values[0] + self.own(values[1])
        return found


def shared(sizes: list[int]) -> list[Any]:
    return [partial(SharedLinear, sizes[0], sizes[1]), partial(GCN, sizes[1], sizes[2], True)]


def test_a_parameter_of_both_functions_is_refused_by_name() -> None:
    """With a tensor worker its gradient would be added up in another order."""
    said = r"layer 0 \(SharedLinear\) uses its parameter linear.bias in apply_edge and in apply_vertex; give each"
    with pytest.raises(JobError, match=said):
        check_job(job_of(f"{__name__}:shared"))
    check_job(job_of("culm.graphs:gat", ", heads = 2"))


def test_an_argument_that_is_used_elsewhere_too_has_the_gradient_that_a_worker_gives() -> None:
    torch.manual_seed(1)
    chunk, layer = ChunkedGraph(blocks(vertices=VERTICES, classes=3, features=6), CHUNKS).chunk(0), BySource(6, 8)

    def gradient(run: Runs) -> torch.Tensor:
        x = chunk.inputs.clone().requires_grad_()
        with turn:
            return torch.autograd.grad(layer(chunk, x, run).square().sum(), x)[0]

    turn = RLock()
    aside = Aside(turn, lambda index: layer)
    aside.desk = Desk(
        "", "", {}, "", lambda index, edition: None, aside.do_here
    )  # no worker is there: the server does it
    try:
        assert torch.equal(gradient(aside.runs(0, lambda function: 1)), gradient(seeded(lambda function: 1)))
    finally:
        aside.close()


class Looking(GraphLayer):
    """Sees to it that what it is given, and its gradients, lie where those of a tensor worker do."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = Looks()

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        looked: torch.Tensor = self.looks(values[0])
        return looked


def test_a_function_is_given_what_a_worker_would_be_given_wherever_its_arguments_lie() -> None:
    """A product adds up in another order from another address."""
    elsewhere = torch.randn(37)[1:].view(4, 9)
    layer, beside = Looking(), torch.ones(4, 1)
    found = seeded(lambda function: 1)(layer, VERTEX, (elsewhere.requires_grad_(),))
    torch.autograd.backward(torch.cat([beside, found], 1).sum())  # the gradient is a view from the second column on
    task = Task(layer=0, function=VERTEX, seed=1, wanted=(True,), arguments=(elsewhere,), gradient=elsewhere.detach())
    (gradient,) = do(layer, task).values()
    assert gradient.data_ptr() % ALIGNMENT == 0

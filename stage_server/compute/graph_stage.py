"""One layer of one chunk of a graph at work in one step: ``Stage`` where pipelines exchange values at every layer."""

# A chunk has one forward and one backward a layer and step, so nothing is accumulated within a step but by the tree
# over chunks. The loss is a sum over the chunk's vertices; what counts is the sum over all chunks, divided by their
# counts.

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from culm.pipeline.job import Job
from culm.pipeline.tensors.as_sent import as_sent
from culm.pipeline.tensors.pytrees import Pytree
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.graph.chunks import Chunk, Chunks
from culm.pipeline.user_code.graph.layer import Runs
from culm.pipeline.user_code.graph.passes import Taken, gradient_of, parts_of, sources_of
from culm.pipeline.user_code.graph.tasks import loss_seed, seeded, task_seed
from culm.pipeline.user_code.losses import taken, tally_of
from culm.pipeline.user_code.metrics import Metrics
from culm.pipeline.user_code.streams import seed_all
from culm.pipeline.user_code.trial import refuse_loss
from culm.stage_server.compute.layer import HeldLayer

# Who does a layer's tensor work, by the layer's number and the seed of each of its functions.
MakesRuns = Callable[[int, Callable[[str], int]], Runs]


def in_place(layer: int, seed_of: Callable[[str], int]) -> Runs:
    return seeded(seed_of)


class GraphStage:
    """What ``Compute`` asks of a stage, for one chunk."""

    def __init__(
        self,
        job: Job,
        graph: Chunks,
        pipeline: int,
        layer: HeldLayer,
        first: bool,
        last: bool,
        loss: Callable[[Pytree, Pytree], Any],
        learning_rate: Callable[[int], float],
    ) -> None:
        self._job, self._graph, self._pipeline = job, graph, pipeline
        self._loss, self._learning_rate = loss, learning_rate
        self.layers: Sequence[HeldLayer] = [layer]
        self.first, self.last = first, last
        self.clips = job.train.clip_norm is not None
        self._parameters = [p for p in layer.module.parameters() if p.requires_grad]
        self._metrics = Metrics(job.train.metrics if last else {}, "train")
        self._step = 0
        # Counts how often a step was begun: what was begun before may end after, and leaves nothing then.
        self._round = 0
        self._taken: Taken | None = None  # from the forward to the backward
        self._told: tuple[float, ...] = ()

    @property
    def chunk(self) -> Chunk:
        return self._graph.chunk(self._pipeline)

    def begin_step(self, step: int) -> None:
        self._step, self._taken, self._told = step, None, ()
        self._round += 1
        self.layers[0].begin_step(self._pipeline)

    def end_step(self) -> None:
        self._taken = None

    def tallies(self) -> tuple[float, ...]:
        return self._told

    def forward(self, given: Sequence[torch.Tensor], runs: MakesRuns = in_place) -> torch.Tensor:
        """``given``: the outputs of the chunks before this one, as ``Neighbours`` has them; nothing at the first layer.
        ``runs``: who does tensor work.

        Returns the new values of the chunk's vertices, [n, k], at the last layer its loss; detached.
        """
        # Asked for once: while a worker computes, a plan may take the chunk from here, which is let go of then.
        layer, chunk, before = self.layers[0], self.chunk, self._graph.neighbours.before[self._pipeline]
        if self.first:
            x = chunk.inputs
        else:
            x = sources_of(chunk, dict(zip(before, given, strict=True))).requires_grad_()
        begun, step = self._round, self._step
        run = runs(layer.index, partial(task_seed, self._job.job.seed, step, self._pipeline, layer.index))
        output: torch.Tensor = layer.module(chunk, x, run)
        told: tuple[float, ...] = ()
        if self.last:
            values = output
            seed_all(loss_seed(self._job.job.seed, step, self._pipeline, layer.index))
            output, counts = taken(self._loss(values, chunk), self._job)
            refuse_loss(output, values)
            measured = self._metrics.numbers(values, chunk, chunk.size)
            told = (*tally_of(output, counts), *measured, self._learning_rate(step))
        if begun == self._round:
            self._taken, self._told = Taken(x, output), told
        return output.detach()

    def backward(self, given: Mapping[int, torch.Tensor], accumulates: bool = True) -> dict[int, torch.Tensor]:
        """``given``: by chunk after this one, the gradient of what it has taken; nothing at the last layer.

        Returns those of what this chunk has taken, by the place of the chunk before it; nothing at the first layer.
        """
        assert self._taken is not None, "the backward has no forward"
        (x, output), self._taken = self._taken, None
        begun, chunk = self._round, self.chunk
        if self.last:
            gradient = torch.ones_like(output)
        else:
            gradient = gradient_of(self._graph, self._pipeline, given, output)
        wanted = [*([] if self.first else [x]), *self._parameters]
        found: list[torch.Tensor | None] = []
        if wanted:
            found = list(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
        of_x = None if self.first else found.pop(0)
        if accumulates and begun == self._round:
            self.layers[0].enter(self._pipeline)
            for parameter, each in zip(self._parameters, found, strict=True):
                parameter.grad = as_sent(each) if each is not None else None
        if of_x is None:
            return {}
        return parts_of(chunk, self._graph.neighbours.before[self._pipeline], of_x)

    def accumulated(self, count: int) -> Value | None:
        """Nothing is shipped: peers hold the layer."""
        return None

    def resume(self, count: int, accumulated: Value) -> None:
        raise AssertionError("nothing was shipped")

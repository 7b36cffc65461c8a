"""An epoch on a graph in one process: layer by layer over all vertices, chunk by chunk."""

from collections.abc import Sequence
from functools import partial

import torch

from culm.oracle.plain_evaluation import pair_of
from culm.oracle.plain_passes import Passes, buffers_of
from culm.pipeline.job import Job
from culm.pipeline.user_code.graph.chunks import Chunk, Chunks
from culm.pipeline.user_code.graph.tasks import loss_seed, seeded, task_seed
from culm.pipeline.user_code.imports import load_callable
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.streams import seed_all

# The shape of a product changes its bits, so every layer goes chunk by chunk here, too. What a chunk's output is the
# gradient of is added up in order of the chunks that took of it.


class GraphPasses:
    """As ``ChainPasses``, for a job with a [graph]."""

    def __init__(
        self, job: Job, source: ModelSource, model: list[torch.nn.Module], parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        self._job, self._loss, self._model, self._parameters = job, source.loss, model, parameters
        self._graph: Chunks = source.dataset()
        # By epoch, of those that later ones take of: what each layer gave of each chunk, forward and backward.
        self._outputs: dict[int, list[list[torch.Tensor]]] = {}
        self._backs: dict[int, dict[int, list[torch.Tensor | None]]] = {}
        self._metrics = {name: load_callable(each, "train.metrics") for name, each in job.train.metrics.items()}

    def passes(self, step: int) -> Passes:
        """One epoch."""
        chunks = [self._graph.chunk(p) for p in range(len(self._graph))]
        made = Passes(measured={name: [] for name in self._metrics})
        of = step - self._job.staleness.lag(step)
        values = [chunk.features for chunk in chunks]
        outputs, backs = self._outputs.setdefault(step, []), self._backs.setdefault(step, {})
        graphs: list[list[tuple[torch.Tensor, torch.Tensor]]] = []  # by layer and chunk: what it took, what it gave
        for index, layer in enumerate(self._model):
            passed = []
            for p, chunk in enumerate(chunks):
                others = self._outputs[of][index - 1] if index else values
                x = torch.cat([values[p], *(others[q][rows] for q, (rows, _) in chunk.taken.items())])
                x.requires_grad_(index > 0)
                seed_of = partial(task_seed, self._job.job.seed, step, p, index)
                passed.append((x, layer(chunk, x, seeded(seed_of))))
            graphs.append(passed)
            values = [output.detach() for _, output in passed]
            outputs.append(values)
        ends = []
        for p, (chunk, (_, output)) in enumerate(zip(chunks, graphs[-1], strict=True)):
            seed_all(loss_seed(self._job.job.seed, step, p, len(self._model) - 1))
            loss, count = self._loss(output, chunk)
            ends.append(loss)
            made.losses.append(loss.item())
            made.counts.append(float(count))
            for name, metric in self._metrics.items():
                made.measured[name].append(pair_of(metric(output.detach(), chunk), chunk.size))
        made.sums.extend(made.losses)
        made.gradients.extend([None] * len(self._parameters) for _ in chunks)
        gradients = [torch.ones_like(loss) for loss in ends]
        for index in reversed(range(len(self._model))):
            of_layer = [
                i for i, p in enumerate(self._parameters) if any(p is q for q in self._model[index].parameters())
            ]
            back = []
            for p, (x, output) in enumerate(graphs[index]):
                end = ends[p] if index == len(self._model) - 1 else output
                wanted = [*([x] if index else []), *(self._parameters[i] for i in of_layer)]
                # A first layer may have no parameters: it adds up neighbours, and others are trained on that.
                found = list(torch.autograd.grad(end, wanted, gradients[p], allow_unused=True)) if wanted else []
                back.append(found.pop(0) if index else None)
                for i, gradient in zip(of_layer, found, strict=True):
                    made.gradients[p][i] = gradient
            backs[index] = back
            if index:
                old, given = self._backs[of][index], [output for _, output in graphs[index - 1]]
                gradients = [self._added(p, chunks, back, old, given[p]) for p in range(len(chunks))]
        for kept in (self._outputs, self._backs):
            kept.pop(step - self._job.staleness.most, None)
        made.after.extend(buffers_of(self._model) for _ in chunks)
        return made

    @staticmethod
    def _added(
        p: int,
        chunks: list[Chunk],
        back: Sequence[torch.Tensor | None],
        old: Sequence[torch.Tensor | None],
        like: torch.Tensor,
    ) -> torch.Tensor:
        """The gradient of a chunk's values, which are ``like``: of all that took them, in order. Zeros of none.

        ``old``: what counts of what other chunks give.
        """
        total = torch.zeros_like(like)
        for q, chunk in enumerate(chunks):
            gradient = back[q] if q == p else old[q]
            if gradient is None or (q != p and p not in chunk.taken):
                continue
            if q == p:
                total += gradient[: chunk.size]
            else:
                rows, first = chunk.taken[p]
                total.index_add_(0, rows, gradient[first : first + len(rows)])
        return total

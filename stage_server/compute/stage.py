"""One stage at work in one step: forwards, backwards and the gradient they accumulate."""

# Why the bits of a step do not depend on who computes it, and how often:
#
#     random numbers   each layer's generators are seeded before it, by (seed, step, pipeline, microbatch, layer)
#     gradients        are accumulated in the order of microbatches, which the program keeps on every node
#     tallies          are kept by microbatch and given in its order, whatever the order in which they came (rule 7)
#     buffers          begin a step with what the step before left, also when it is run again; a graph has those of
#                      its own forward (``changing.py``)
#     inputs           require a gradient where the output of the stage before does, as if no cut lay between them:
#                      torch has other kernels for what requires none, and so may a layer
#
# A graph is kept from a microbatch's forward to its backward. Those of redundant forwards are kept until the commit:
# a standby that becomes the owner runs their backwards alone.

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.as_sent import after_layers, as_sent, between_layers
from culm.pipeline.tensors.bits import same_bits
from culm.pipeline.tensors.gradients import own_gradients
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import NotAPytree, Pytree, mapped, tensors_in
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.pipeline.user_code.forwards import Forwards, as_within
from culm.pipeline.user_code.losses import taken, tally_of
from culm.pipeline.user_code.metrics import Metrics
from culm.pipeline.user_code.refusals import returned_odd
from culm.pipeline.user_code.streams import stream_seed
from culm.pipeline.user_code.trial import refuse_loss
from culm.stage_server.compute.by_layer import Boundary, backward_by_layer
from culm.stage_server.compute.evaluation import StageEvaluation
from culm.stage_server.compute.layer import HeldLayer, Values
from culm.stage_server.compute.merging import Given
from culm.stage_server.compute.split import SplitBackward
from culm.stage_server.compute.untouched import Untouched


class Stage:
    """Runs a contiguous range of layers for one pipeline. Knows nothing of keys, plans or peers."""

    def __init__(
        self,
        job: Job,
        pipeline: int,
        layers: Sequence[HeldLayer],
        first: bool,
        last: bool,
        loss: Callable[[Pytree, Pytree], torch.Tensor],
        splits: bool = False,
        learning_rate: Callable[[int], float] = lambda step: math.nan,
        workspace: int | None = None,
    ) -> None:
        """``learning_rate``: gives that of a step, to be told beside the loss; NaN: there is none. ``workspace``: in
        which buffers and gradients of the layers it works, if not in its pipeline's.
        """
        self._pipeline = pipeline
        self._workspace = pipeline if workspace is None else workspace
        self._learning_rate = learning_rate
        self.layers: Sequence[HeldLayer] = layers
        self.first = first
        self.last = last
        self._loss = loss
        self._job = job
        self._forwards = Forwards(job)
        self._seed = job.job.seed
        self._microbatches_of_step = job.pipeline.pipelines * job.pipeline.microbatches
        self._last_microbatch = job.pipeline.microbatches - 1
        self.clips = job.train.clip_norm is not None
        self._step = 0
        # By microbatch, as all that follows: the tensors of the input, and those of the output, or the loss.
        self._graphs: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._boundaries: list[Boundary] = []  # between the layers of the last microbatch's graph
        self._tallies: dict[int, tuple[float, ...]] = {}  # of the last stage alone
        self._share: torch.Tensor | None = None  # the gradient of each microbatch's loss; see ``_share_of``
        self._parameters = [p for layer in layers for p in layer.module.parameters() if p.requires_grad]
        self._split = SplitBackward(self._parameters) if splits else None
        self._metrics = Metrics(job.train.metrics if last else {}, "train")
        self._untouched = Untouched(layers)
        self.evaluation = StageEvaluation(job, pipeline, layers, loss if last else None)
        # Whether a layer writes into what it is given, as an in-place ReLU does; None until the first forward shows it.
        # Any layer counts: those before it may hand on the stage's own input now and then, as LayerDrop does. So do the
        # loss and the metrics: a last layer may hand on its input, as Flatten does.
        self._writes_input: bool | None = None

    def tallies(self, count: int | None = None) -> tuple[float, ...]:
        """Of the step's first ``count`` microbatches, or all with the evaluated ones; none but at the last stage."""
        trained = chain.from_iterable(self._tallies[m] for m in sorted(self._tallies)[:count])
        return (*trained, *(self.evaluation.tallies() if count is None else ()))

    def _enter(self) -> None:
        for layer in self.layers:
            layer.enter(self._workspace)

    def begin_step(self, step: int) -> None:
        """Starts a step from its beginning: graphs, gradients, tallies and changes to buffers are dropped."""
        self._step = step
        self.end_step()
        self._tallies.clear()
        self.evaluation.begin_step()
        for layer in self.layers:
            layer.begin_step(self._workspace)
        self._untouched.begin_step()

    def end_step(self) -> None:
        """The step is committed: graphs that were kept for an heir are of no use any more."""
        self._graphs.clear()
        self._boundaries.clear()
        if self._split is not None:
            self._split.clear()

    def forward(self, microbatch: int, x: Pytree, target: Pytree) -> Pytree:
        """Runs a microbatch forward and keeps its graph. Returns the output, or at the last stage the loss.

        x: tensors [B, ...] as the first layer takes them, which are in no other forward; target as the loss takes it,
        None but at the last stage. A tensor of the output requires a gradient if it has a graph, and that of the next
        stage's x is to require one.
        """
        self._enter()
        if not self.first:
            x = mapped(lambda tensor: tensor if tensor.is_leaf else _cut_off(tensor), x)
        # Its memory is also another's: the stage before keeps it for an heir that may need it again. A leaf that
        # requires its gradient may not be written at all.
        given = x if self._writes_input is False else mapped(copy_of, x)
        inputs, own = tensors_in(x), tensors_in(given)
        versions = _versions_of(own)
        watches = self._writes_input is None  # each layer, until it is known whether somebody writes
        last = len(self.layers) - 1
        between = False  # whether a layer has written into what the one before gave it
        h = as_within(self._job, given)
        self._untouched.before_forward()
        boundaries: list[Boundary] = []
        for place, layer in enumerate(self.layers):
            if place and microbatch == self._last_microbatch:
                boundaries += [(place, tensor.grad_fn) for tensor in tensors_in(h) if tensor.grad_fn is not None]
            # Before each layer, not once: how many numbers a layer draws must not matter to a stage cut elsewhere.
            seed = stream_seed(self._seed, self._step, self._pipeline, microbatch, layer.index)
            layer.device.seed(seed)
            if layer.changing.may_change:
                layer.changing.begin_forward()
            handed = tensors_in(h) if watches else []
            before = _versions_of(handed) if watches else []
            try:
                handed_on = between_layers if place < last else after_layers
                h = handed_on(self._forwards.run(layer.module, h, seed, layer.device.seed))
            except NotAPytree as error:
                raise returned_odd(_name_of(layer), error) from error
            except RuntimeError as error:
                self._refuse_raised(error, _name_of(layer), "model.layers")
                raise
            if watches and _versions_of(handed) != before:
                between = True
            if layer.changing.may_change:
                layer.changing.end_forward(tensors_in(h))
        if self._writes_input is False and _versions_of(own) != versions:
            raise _writes_now(_name_of(self.layers[0]), "model.layers")
        if self.last:
            handed = tensors_in(h) if watches else []
            before = _versions_of(handed) if watches else []
            try:
                with self._forwards.precision():
                    output, (h, counts) = h, taken(self._loss(h, target), self._job)
                    refuse_loss(h, output)
                    measured = self._metrics.numbers(output, target, self._job.data.microbatch)
            except RuntimeError as error:
                self._refuse_raised(error, "the loss", "train.loss")
                raise
            if watches and _versions_of(handed) != before:
                between = True
            if self._writes_input is False and _versions_of(own) != versions:
                raise _writes_now("the loss or a metric", "train.loss")
            # A repeat gives the same, and counts once.
            self._tallies[microbatch] = (*tally_of(h, counts), *measured, self._learning_rate(self._step))
        if watches:
            # Writes through .data count no version.
            wrote = between or _versions_of(own) != versions
            self._writes_input = wrote or not all(map(same_bits, own, inputs))
        self._untouched.refuse_after_forward()
        self._graphs[microbatch] = (inputs, tensors_in(h))
        if boundaries:
            self._boundaries = boundaries
        return h

    def evaluate(self, microbatch: int, x: Pytree, target: Pytree) -> Pytree | None:
        """As ``StageEvaluation.forward``, in the running step."""
        return self.evaluation.forward(self._step, microbatch, x, target)

    def _refuse_raised(self, error: RuntimeError, name: str, where: str) -> None:
        """Raises JobError where torch lets nobody write into the input, of which no copy was made."""
        if self._writes_input is False and "in-place" in str(error):
            raise _writes_now(name, where) from error

    def backward(
        self,
        microbatch: int,
        gradients: Mapping[int, torch.Tensor],
        accumulates: bool = True,
        through: Callable[[HeldLayer], None] | None = None,
    ) -> dict[int, torch.Tensor]:
        """Runs a microbatch backward, adds to the accumulated gradient and frees the graph.

        gradients: of those of the output's tensors that have one, by their place, shaped like them; none at the last
        stage. Returns those of the input's tensors alike. If the stage splits its backwards, nothing is accumulated
        before ``backward_of_parameters``. ``accumulates``: false leaves the accumulated gradient as it is.
        ``through``: of the step's last microbatch, called for each layer but the first one that is through while layers
        before it are not; never where backwards are split.
        """
        self._enter()
        if accumulates:
            return self._backward(microbatch, gradients, through)
        kept = [(p, p.grad) for p in self._parameters]
        for parameter, _ in kept:
            parameter.grad = None
        try:
            return self._backward(microbatch, gradients)
        finally:
            for parameter, grad in kept:
                parameter.grad = grad

    def _backward(
        self,
        microbatch: int,
        gradients: Mapping[int, torch.Tensor],
        through: Callable[[HeldLayer], None] | None = None,
    ) -> dict[int, torch.Tensor]:
        if microbatch == 0:
            self._untouched.before_first_backward()
        inputs, outputs = self._graphs.pop(microbatch)
        given = self._given(outputs, gradients)
        if self._split is not None:
            made = self._split.of_input(microbatch, inputs, [outputs[i] for i in given], [*given.values()])
        else:
            made = self._run_backward(microbatch, inputs, outputs, given, through)
        self._untouched.refuse_writes()
        if microbatch == 0:
            self._untouched.refuse_draws(whole=self._split is None)
        if microbatch == self._last_microbatch:
            self._untouched.refuse_after_last_backward()
        return {i: as_sent(gradient) for i, gradient in sorted(made.items())}

    def _given(self, outputs: list[torch.Tensor], gradients: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The gradients from which a backward begins, by the place of their output."""
        if self.last:
            return {0: self._share_of(outputs[0])}
        if any(i >= len(outputs) for i in gradients):
            what = f"the next stage gives the gradient of output {max(gradients)}, and there are {len(outputs)}"
            raise JobError(what, "model.layers", "give every node the same code")
        return {i: gradients[i] for i in sorted(gradients) if outputs[i].requires_grad}

    def _run_backward(
        self,
        microbatch: int,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        given: Mapping[int, torch.Tensor],
        through: Callable[[HeldLayer], None] | None,
    ) -> dict[int, torch.Tensor]:
        # Not ``x.grad``, which is laid out like x. The layer before gets the gradient as it was made, as if no cut lay
        # between them.
        made: dict[int, torch.Tensor] = {}
        for i, x in enumerate(inputs if not self.first else ()):
            if x.requires_grad:
                x.register_hook(partial(_note, made, i))  # type: ignore[no-untyped-call]
        fresh = [parameter for parameter in self._parameters if parameter.grad is None]
        ends, begins = [outputs[i] for i in given], [*given.values()]
        if ends and through is not None and microbatch == self._last_microbatch:
            backward_by_layer(ends, begins, self.layers, self._boundaries, through)
        elif ends:
            torch.autograd.backward(ends, begins)
        if fresh:
            self._untouched.refuse_sparse(fresh)
            own_gradients(fresh, [*inputs, *made.values(), *begins])
        if microbatch == self._last_microbatch:
            self._boundaries.clear()
        return made

    def _share_of(self, loss: torch.Tensor) -> torch.Tensor:
        """What one microbatch's loss is of the step's: the gradient that ``loss / parts`` would pass on, made once."""
        if self._share is None:
            self._share = torch.ones_like(loss)
            if self._job.train.reduction == "mean":
                self._share = self._share / self._microbatches_of_step
        return self._share

    def backward_of_parameters(self, microbatch: int) -> None:
        """The second half of a backward that is split."""
        assert self._split is not None, "the schedule splits no backwards here"
        self._enter()
        if microbatch == 0:
            self._untouched.before_first_backward()
        self._split.of_parameters(microbatch)
        if microbatch == 0:
            self._untouched.refuse_draws()
        if microbatch == self._last_microbatch:
            self._untouched.refuse_after_last_backward()

    def accumulated(self, count: int) -> Value | None:
        """A copy of what the gradients have come to after so many microbatches, with the tallies of these.

        None if the stage's forwards change buffers: those are ahead of its backwards.
        """
        self._enter()
        if any(layer.has_changed_buffers() for layer in self.layers):
            return None
        tensors = tuple(
            (f"{layer.index}.{name}", parameter.grad.clone())
            for layer in self.layers
            for name, parameter in layer.module.named_parameters()
            if parameter.grad is not None
        )
        return Value(tensors, tallies=self.tallies(count))

    def resume(self, count: int, accumulated: Value) -> None:
        """Goes on from what another copy of the stage gave after so many microbatches."""
        self._enter()
        given = dict(accumulated.tensors)
        for layer in self.layers:
            for name, parameter in layer.module.named_parameters():
                gradient = given.get(f"{layer.index}.{name}")
                if gradient is not None:  # a copy: backwards add to it in place, and the value came from a mailbox
                    parameter.grad = torch.empty_like(parameter).copy_(gradient)
        for m in range(count if self.last else 0):
            size = self._job.tally_form.trained
            self._tallies[m] = accumulated.tallies[m * size : (m + 1) * size]


def _name_of(layer: HeldLayer) -> str:
    return f"layer {layer.index} ({type(layer.module).__name__})"


def _cut_off(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, without a graph."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _versions_of(tensors: list[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def _writes_now(name: str, where: str) -> JobError:
    what = f"{name} changes its input in place, but not always"
    return JobError(what, where, "write nothing in place there (inplace=False)")


def _note(made: dict[int, torch.Tensor], place: int, gradient: torch.Tensor | None) -> None:
    """A tensor's hook. torch calls it with None where a Function gives no gradient."""
    if gradient is not None:
        made[place] = gradient


class Summed(Protocol):
    """What a stage tells where its gradient is merged with other pipelines'."""

    clips: bool

    @property
    def layers(self) -> Sequence[HeldLayer]: ...
    def tallies(self) -> tuple[float, ...]: ...


def merged(
    stages: Sequence[Summed],
    block: Block,
    pipelines: int,
    left: Collection[int] = frozenset(),
    leaves: bool = True,
    given: Given = (),
) -> dict[Addend, Value]:
    """A block's gradient of one stage, by addend, but for layers that have left.

    ``stages``: it in every pipeline of the block, in their order. ``leaves``, ``given``: see ``HeldLayer.merge``.
    Over all pipelines it is the reduced gradient.
    """
    layers = (layer for layer in stages[0].layers if layer.index not in left)
    return dict(pair for layer in layers for pair in merged_layer(stages, layer, block, pipelines, leaves, given))


def merged_layer(
    stages: Sequence[Summed], layer: HeldLayer, block: Block, pipelines: int, leaves: bool = True, given: Given = ()
) -> Values:
    """The same of one layer; the tallies ride with the model's last layer."""
    tallies = tuple(number for stage in stages for number in stage.tallies()) if layer is stages[0].layers[-1] else ()
    return layer.merge(block, pipelines, tallies, stages[0].clips, leaves, given)

"""One stage at work in one step: forwards, backwards and the gradient they accumulate."""

# Why the bits of a step do not depend on who computes it, and how often:
#
#     random numbers   each layer's generators are seeded before it, by (seed, step, pipeline, microbatch, layer)
#     gradients        are accumulated in the order of microbatches, which the program keeps on every node
#     losses           are kept by microbatch and given in its order, whatever the order in which they came (rule 7)
#     buffers          begin a step with what the step before left, also when it is run again; a graph has those of
#                      its own forward (``changing.py``)
#     inputs           require a gradient where the output of the stage before does, as if no cut lay between them:
#                      torch has other kernels for what requires none, and so may a layer
#
# A graph is kept from a microbatch's forward to its backward. Those of redundant forwards are kept until the commit:
# a standby that becomes the owner runs their backwards alone.

from collections.abc import Callable, Collection, Sequence

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.bits import same_bits
from culm.pipeline.tensors.gradients import own_gradients
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.lazy import between_layers, in_memory
from culm.pipeline.tensors.values import Value
from culm.pipeline.tree import Block
from culm.pipeline.user_code.forwards import Forwards, as_within
from culm.pipeline.user_code.streams import stream_seed
from culm.pipeline.user_code.trial import refuse_loss
from culm.stage_server.compute.by_layer import Boundary, backward_by_layer
from culm.stage_server.compute.layer import HeldLayer
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
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        splits: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self.layers = layers
        self._first = first
        self._last = last
        self._loss = loss
        self._job = job
        self._forwards = Forwards(job)
        self._seed = job.job.seed
        self._microbatches_of_step = job.pipeline.pipelines * job.pipeline.microbatches
        self._last_microbatch = job.pipeline.microbatches - 1
        self.clips = job.train.clip_norm is not None
        self._step = 0
        # By microbatch, as all that follows: the input, and the output or the loss.
        self._graphs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._boundaries: list[Boundary] = []  # between the layers of the last microbatch's graph
        self._losses: dict[int, float] = {}  # of the last stage alone
        self._share: torch.Tensor | None = None  # the gradient of each microbatch's loss; see ``_share_of``
        self._parameters = [p for layer in layers for p in layer.module.parameters() if p.requires_grad]
        self._split = SplitBackward(self._parameters) if splits else None
        self._untouched = Untouched(layers)
        # Whether the layers write into the input, as an in-place ReLU does; None before the first forward has shown it.
        self._writes_input: bool | None = None

    def losses(self) -> tuple[float, ...]:
        """The step's so far, in order of microbatch; none but at the last stage."""
        return tuple(self._losses[m] for m in sorted(self._losses)) if self._last else ()

    def _enter(self) -> None:
        for layer in self.layers:
            layer.enter(self._pipeline)

    def begin_step(self, step: int) -> None:
        """Starts a step from its beginning: graphs, gradients, losses and changes to buffers are dropped."""
        self._step = step
        self.end_step()
        self._losses.clear()
        for layer in self.layers:
            layer.begin_step(self._pipeline)
        self._untouched.begin_step()

    def end_step(self) -> None:
        """The step is committed: graphs that were kept for an heir are of no use any more."""
        self._graphs.clear()
        self._boundaries.clear()
        if self._split is not None:
            self._split.clear()

    def forward(self, microbatch: int, x: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        """Runs a microbatch forward and keeps its graph. Returns the output, or at the last stage the loss, detached.

        x: [B, ...] as the first layer takes it; target as the loss takes it, at the last stage only. An output requires
        a gradient if it has a graph, and the next stage's x is to require one then.
        """
        self._enter()
        if not self._first:
            x = x.detach().requires_grad_(x.requires_grad)
        # The input is also another's: the stage before keeps it for an heir that may need it again. A leaf that
        # requires its gradient may not be written at all.
        h = given = x if self._writes_input is False else copy_of(x)
        version = given._version
        h = as_within(self._job, h)
        self._untouched.before_forward()
        boundaries: list[Boundary] = []
        for place, layer in enumerate(self.layers):
            if place and microbatch == self._last_microbatch and h.grad_fn is not None:
                boundaries.append((place, h.grad_fn))
            # Before each layer, not once: how many numbers a layer draws must not matter to a stage cut elsewhere.
            seed = stream_seed(self._seed, self._step, self._pipeline, microbatch, layer.index)
            layer.device.seed(seed)
            layer.changing.begin_forward()
            try:
                h = between_layers(self._forwards.run(layer.module, h, seed, layer.device.seed))
            except RuntimeError as error:
                if "in-place" in str(error) and self._writes_input is False:
                    raise self._writes_now(layer) from error
                raise
            layer.changing.end_forward(h)
        wrote = given._version != version
        if self._writes_input is None:
            self._writes_input = wrote or not same_bits(given, x)  # writes through .data count no version
        elif wrote and not self._writes_input:
            raise self._writes_now(self.layers[0])
        if self._last:
            assert target is not None, "the last stage takes the target"
            with self._forwards.precision():
                output, h = h, self._loss(h, target)
            refuse_loss(h, output)
            self._losses[microbatch] = h.item()  # a repeat gives the same number, and counts once
        self._untouched.refuse_after_forward()
        self._graphs[microbatch] = (x, h)
        if boundaries:
            self._boundaries = boundaries
        return h.detach().requires_grad_(h.requires_grad and not self._last)

    def _writes_now(self, layer: HeldLayer) -> JobError:
        what = f"layer {layer.index} ({type(layer.module).__name__}) changes its input in place, but not always"
        return JobError(what, "model.layers", "use the layer's inplace=False")

    def backward(
        self,
        microbatch: int,
        gradient: torch.Tensor | None,
        accumulates: bool = True,
        through: Callable[[HeldLayer], None] | None = None,
    ) -> torch.Tensor | None:
        """Runs a microbatch backward, adds to the accumulated gradient and frees the graph.

        gradient: of the output, shaped like it; None at the last stage, or where the next stage has none. Returns the
        gradient of the input, or None where it has none. If the stage splits its backwards, nothing is accumulated
        before ``backward_of_parameters``. ``accumulates``: false leaves the accumulated gradient as it is.
        ``through``: of the step's last microbatch, called for each layer but the first one that is through while layers
        before it are not; never where backwards are split.
        """
        self._enter()
        if accumulates:
            return self._backward(microbatch, gradient, through)
        kept = [(p, p.grad) for p in self._parameters]
        for parameter, _ in kept:
            parameter.grad = None
        try:
            return self._backward(microbatch, gradient)
        finally:
            for parameter, grad in kept:
                parameter.grad = grad

    def _backward(
        self,
        microbatch: int,
        gradient: torch.Tensor | None,
        through: Callable[[HeldLayer], None] | None = None,
    ) -> torch.Tensor | None:
        if microbatch == self._last_microbatch:
            self._untouched.before_last_backward()
        made = self._run_backward(microbatch, gradient, through)
        self._untouched.refuse_writes()
        if microbatch == self._last_microbatch:
            self._untouched.refuse_after_last_backward(whole=self._split is None)
        return in_memory(made) if made is not None else None

    def _run_backward(
        self, microbatch: int, gradient: torch.Tensor | None, through: Callable[[HeldLayer], None] | None
    ) -> torch.Tensor | None:
        x, output = self._graphs.pop(microbatch)
        if self._last:
            gradient = self._share_of(output)
        if self._split is not None:
            return self._split.of_input(microbatch, x, output, gradient)
        # Not ``x.grad``, which is laid out like x. The layer before gets the gradient as it was made, as if no cut lay
        # between them.
        made: list[torch.Tensor | None] = []  # torch calls the hook with None where a Function gives no gradient
        if not self._first and x.requires_grad:
            x.register_hook(made.append)  # type: ignore[no-untyped-call]
        fresh = [parameter for parameter in self._parameters if parameter.grad is None]
        if gradient is not None and output.requires_grad:
            if through is None or microbatch != self._last_microbatch:
                torch.autograd.backward(output, gradient)
            else:
                backward_by_layer(output, gradient, self.layers, self._boundaries, through)
        if fresh:
            self._untouched.refuse_sparse(fresh)
            own_gradients(fresh, [x, *(given for given in (*made, gradient) if given is not None)])
        if microbatch == self._last_microbatch:
            self._boundaries.clear()
        return made[0] if made else None

    def _share_of(self, loss: torch.Tensor) -> torch.Tensor:
        """What one microbatch's loss is of the step's: the gradient that ``loss / parts`` would pass on, made once."""
        if self._share is None:
            self._share = torch.ones_like(loss) / self._microbatches_of_step
        return self._share

    def backward_of_parameters(self, microbatch: int) -> None:
        """The second half of a backward that is split."""
        assert self._split is not None, "the schedule splits no backwards here"
        self._enter()
        if microbatch == self._last_microbatch:
            self._untouched.before_last_backward()
        self._split.of_parameters(microbatch)
        if microbatch == self._last_microbatch:
            self._untouched.refuse_after_last_backward()

    def accumulated(self, count: int) -> Value | None:
        """A copy of what the gradients have come to after so many microbatches, with the losses of these.

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
        losses = tuple(loss for m, loss in sorted(self._losses.items()) if m < count)
        return Value(tensors, losses=losses if self._last else ())

    def resume(self, count: int, accumulated: Value) -> None:
        """Goes on from what another copy of the stage gave after so many microbatches."""
        self._enter()
        given = dict(accumulated.tensors)
        for layer in self.layers:
            for name, parameter in layer.module.named_parameters():
                gradient = given.get(f"{layer.index}.{name}")
                if gradient is not None:  # a copy: backwards add to it in place, and the value came from a mailbox
                    parameter.grad = torch.empty_like(parameter).copy_(gradient)
        for m in range(count if self._last else 0):
            self._losses[m] = accumulated.losses[m]


def merged(
    stages: Sequence[Stage], block: Block, pipelines: int, left: Collection[int] = frozenset()
) -> dict[int, Value]:
    """A block's gradient of one stage, a value a bucket, but for layers that have left.

    ``stages``: it in every pipeline of the block, in their order. Over all pipelines it is the reduced gradient.
    """
    layers = (layer for layer in stages[0].layers if layer.index not in left)
    return {bucket: value for x in layers for bucket, value in merged_layer(stages, x, block, pipelines)}


def merged_layer(
    stages: Sequence[Stage], layer: HeldLayer, block: Block, pipelines: int
) -> tuple[tuple[int, Value], ...]:
    """The same of one layer; the losses ride with the model's last layer."""
    rides = layer is stages[0].layers[-1]
    value = layer.merge(block, pipelines, tuple(loss for stage in stages for loss in stage.losses()) if rides else ())
    values = layer.in_buckets(value)
    if block != Block(0, pipelines):
        return values
    return tuple((bucket, layer.whole(each, stages[0].clips)) for bucket, each in values)

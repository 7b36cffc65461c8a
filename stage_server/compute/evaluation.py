"""A stage's part in an evaluation: forwards that leave nothing behind but their output."""

# Layers are in evaluation mode, no graph is made, and buffers are those with which the step began, whatever forwards of
# the step have made of them meanwhile. So the moment at which a stage runs it changes no number.

from collections.abc import Callable, Sequence
from itertools import chain

import torch

from culm.pipeline.job import Job
from culm.pipeline.tensors.as_sent import between_layers
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import NotAPytree, Pytree, mapped
from culm.pipeline.user_code.evaluating import Measures
from culm.pipeline.user_code.forwards import Forwards
from culm.pipeline.user_code.modes import evaluation_mode
from culm.pipeline.user_code.refusals import returned_odd
from culm.pipeline.user_code.streams import stream_seed
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.untouched import Untouched


class StageEvaluation:
    """Of one stage, for one pipeline."""

    def __init__(
        self,
        job: Job,
        pipeline: int,
        layers: Sequence[HeldLayer],
        loss: Callable[[Pytree, Pytree], torch.Tensor] | None,  # None: the stage is not the last one
    ) -> None:
        self._job = job
        self._pipeline = pipeline
        self._layers = layers
        self._forwards = Forwards(job)
        self._measures = Measures(job, loss) if loss is not None and job.evaluate is not None else None
        self._tallies: dict[int, tuple[float, ...]] = {}  # of the running step, by microbatch
        self._untouched = Untouched(layers)

    def begin_step(self) -> None:
        """What was evaluated in the step is dropped."""
        if self._job.evaluate is None:
            return
        self._tallies.clear()
        self._untouched.begin_step()

    def tallies(self) -> tuple[float, ...]:
        """Of all microbatches that were evaluated in the step, in order; none but at the last stage."""
        return tuple(chain.from_iterable(self._tallies[m] for m in sorted(self._tallies)))

    @torch.no_grad()
    def forward(self, step: int, microbatch: int, x: Pytree, target: Pytree) -> Pytree | None:
        """Runs a microbatch forward. Returns the output; at the last stage None, and keeps what it tells.

        x: tensors [B, ...] as the first layer takes them; target as the loss takes it, None but at the last stage.
        """
        self._untouched.before_forward()
        h = mapped(copy_of, x)  # the input is also another's, and a layer may write into it
        for layer in self._layers:
            # Streams of their own: those of the microbatches that are trained lie before them.
            place = self._job.pipeline.microbatches + microbatch
            seed = stream_seed(self._job.job.seed, step, self._pipeline, place, layer.index)
            layer.device.seed(seed)
            try:
                with evaluation_mode(layer.module), layer.with_committed_buffers():
                    h = between_layers(self._forwards.once(layer.module, h))
            except NotAPytree as error:
                raise returned_odd(f"layer {layer.index} ({type(layer.module).__name__})", error) from error
        self._untouched.refuse_after_forward()
        if self._measures is None:
            return mapped(torch.Tensor.detach, h)
        self._tallies[microbatch] = self._measures.of(self._pipeline, microbatch, h, target)
        return None

"""Digests that holders of a stage compare (rule 25): of a layer's state, and of a forward that another node has run."""

# An audit runs on a stage object of its own, over the layers that this node holds, in a workspace of its own: no
# pipeline's buffers are touched. Its graph goes.
#
# Two forwards have no digest that another node would have, too:
#
#     a layer changes buffers that its output may depend on, such as those of a spectral norm: which microbatches ran
#     before is not the same here (norms over a batch do not read what they change)
#     the samples come from an iterable dataset, which one reader reads in order

from collections.abc import Callable, Sequence

from culm.pipeline import flow
from culm.pipeline.audits import digest_of_numbers
from culm.pipeline.instruction import Duty
from culm.pipeline.job import Job
from culm.pipeline.tensors.bits import checksum
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import Pytree, mapped
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import Device
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.loading import Samples
from culm.stage_server.compute.stage import Stage
from culm.stage_server.worker.work import Audit, Load

WORKSPACE = -1  # no pipeline has this number


def state_digest(layer: HeldLayer, device: Device) -> int:
    """Of all that decides the layer's next step. 64 bits."""
    state = layer.state()
    if device.in_host:
        return state.digest
    # Where it lies: on the card, or in the host's memory. So of a kind that is the same in both.
    return digest_of_numbers([float(checksum(tensor)) for _, tensor in state.tensors])


class Auditing:
    """Runs forwards again, each with nothing of the one before."""

    def __init__(self, job: Job, source: ModelSource, device: Device) -> None:
        self._job = job
        self._source = source
        self._device = device

    def run(
        self,
        work: Audit[Value],
        layers: Sequence[HeldLayer],
        load: Callable[[Load], Samples | None],
        passed_on: Callable[[Pytree, Pytree], Value],
    ) -> int | None:
        """The output's digest; None where there is none to compare."""
        duty, m = work.duty, work.microbatch
        if work.operand is not None:
            inputs, target = work.operand.output_and_target()
        else:
            samples = load(Load(work.step, duty.pipeline, m))
            if samples is None:
                return None
            inputs, target = samples
        stage = self._stage(duty, layers, work.stages)
        x = mapped(self._device.here, inputs)
        compared = mapped(copy_of, mapped(self._device.here, target)) if stage.last else None
        stage.begin_step(work.step)
        try:
            output = stage.forward(m, x, compared)
            if any(layer.changing.changes for layer in layers):
                return None
            return digest_of_numbers(stage.tallies()) if stage.last else passed_on(output, target).digest
        finally:
            stage.begin_step(work.step)

    def _stage(self, duty: Duty, layers: Sequence[HeldLayer], stages: int) -> Stage:
        first, last = flow.takes_samples(duty.stage), flow.ends_in_loss(duty.stage, stages)
        loss, rate = self._source.loss, self._source.learning_rate
        return Stage(self._job, duty.pipeline, layers, first, last, loss, learning_rate=rate, workspace=WORKSPACE)

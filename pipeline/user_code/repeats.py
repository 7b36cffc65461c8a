"""Asks every layer and the loss again, with another past behind them: what they give must be the same bits.

Layer by layer, each built and run alone: a model too large for this machine is never whole on it.
"""

# A node runs work again, an heir runs what it never ran before, and a resumed run begins in the middle. So what a layer
# gives for a microbatch may depend on its input, its parameters and buffers, and the seeded generators; on nothing that
# earlier work has left in Python. Of two microbatches, A and B:
#
#     first sweep      each layer as it was built:    B   A   A
#     second sweep     each layer built anew:         A   B, and A's backward after B's forward
#
#     A after B, A after A, A on a new layer    have the same bits, so has B: else the layer counts, draws from a
#                                               generator of its own, or sets itself up by what it sees first
#     the second sweep's A                      comes when the layers before have last seen B, the first sweep's when
#                                               they have seen A: so it shows what they leave for one another
#     the second sweep's backward of A          comes after a later forward, as in a pipeline: so it shows what it
#                                               reads from the module, where that forward has been
#     attributes after A and after A, A         are the same. A cache that grows with its input passes; what goes on
#                                               with every forward does not. That a count has changed no result so far
#                                               proves little: it may act after a thousand steps, and silently
#
# Every run begins with the values of buffers that the layer was built with, and seeded as a node seeds it. In the last
# one of the first sweep other tensors take the buffers' place, since a node exchanges them (rule 21). Whoever reads or
# writes a buffer under another name still has the first ones then, with what the run before has left there.

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from culm.pipeline.checkpoints.digest import hash_layer
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.bits import digest_of
from culm.pipeline.tensors.layout import copy_of, is_plain, overlaps
from culm.pipeline.tensors.pytrees import NotAPytree, Pytree, mapped, refuse_unsendable, tensors_in
from culm.pipeline.user_code.forwards import Forwards, precision_of
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.losses import refuse_parameters, taken, tally_of
from culm.pipeline.user_code.metrics import Metrics
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.outline import Outline
from culm.pipeline.user_code.refusals import (
    begins_with_nan,
    changes_parameter,
    reads_late,
    returned_odd,
    writes_into_overlap,
)
from culm.pipeline.user_code.sharing import kept_between, tensors_of
from culm.pipeline.user_code.streams import seed_all, stream_seed
from culm.pipeline.user_code.trial import (
    Bits,
    Ran,
    Trial,
    Written,
    attributes_of,
    bits_of,
    leaf_of,
    refuse_loss,
    run_backward,
)
from culm.pipeline.user_code.writing import NOBODY, Giver, Sharers

TRIES = 8  # a layer may leave itself out by chance, as LayerDrop does
MEND = "let it depend on its input, parameters, buffers and the seeded generators alone; a count may be a buffer"


@dataclass(frozen=True, slots=True)
class Sample:
    """One microbatch, on its way through the layers. ``key``: its step, pipeline and number."""

    key: tuple[int, int, int]
    x: Pytree
    target: Pytree

    def seed(self, job: Job, layer: int) -> int:
        return stream_seed(job.job.seed, *self.key, layer)

    def after(self, ran: Ran) -> "Sample":
        return Sample(self.key, ran.output, self.target)


Firsts = list[tuple[bool, Bits, Bits]]  # by layer: whether layers before it are trained, what A gave, what B gave


def ask_again(source: ModelSource, job: Job, a: Sample, b: Sample) -> None:
    """Runs two microbatches through every layer and the loss, in two sweeps. Raises JobError naming the layer."""
    firsts = _first_sweep(source, job, a, b)
    _second_sweep(source, job, a, b, firsts)


def _first_sweep(source: ModelSource, job: Job, a: Sample, b: Sample) -> Firsts:
    """What each layer gives first, and last the loss."""
    trained = False  # whether a layer so far has parameters to train
    firsts: Firsts = []
    sharers = NOBODY  # of A's memory
    given_nan, made_nan = _has_nan(a.x), ""  # whether A's samples have a NaN; else the first layer that returns one
    for index in range(source.layer_count):
        layer = _build(source, index)
        name = _name(layer, index)
        trial = Trial(layer, name, trained, job.schedule.splits, Forwards(job))
        first_parameters = _bits_of_parameters(layer)
        of_b = trial.run(b.x, b.seed(job, index), backward=False)
        of_a = trial.run(a.x, a.seed(job, index), backward=True)
        _refuse_unsendable(name, of_a.output, a.target)
        before = attributes_of(layer)
        again = trial.run_exchanged(a.x, a.seed(job, index), of_a.bits)
        after = attributes_of(layer)
        if any(overlaps(tensor) for place, tensor in enumerate(tensors_in(a.x)) if place in of_a.memory.written):
            raise writes_into_overlap(name)
        sharers.refuse_writing(name, of_a.memory.written, "model.layers")
        giver = Giver(name, partial(_needs_output, source, job, index, trained, a, of_a.bits))
        sharers = sharers.after(giver, len(tensors_in(of_a.output)), of_a.memory)
        if not of_a.reached:
            seeds = [stream_seed(job.job.seed, step, 0, 0, index) for step in range(1, TRIES)]
            _try_for_a_gradient(trial, name, trained, a.x, seeds)
        _refuse_written(name, first_parameters, _bits_of_parameters(layer))
        _refuse_other(name, of_a.bits, again.bits, "model.layers")
        _refuse_counting(name, before, after, "model.layers")
        firsts.append((trained, of_a.bits, of_b.bits))
        if not given_nan and not made_nan and _has_nan(of_a.output):
            made_nan = name
        trained = trained or any(p.requires_grad for p in layer.parameters())
        a, b = a.after(of_a), b.after(of_b)
    if not trained:
        what = "no layer has a parameter that requires a gradient: there is nothing to train"
        raise JobError(what, f"model.layers, {job.model.layers}", "leave some of them unfrozen")
    of_b_bits = _run_loss(source, job, b)
    forward_of_a = _loss_forward(source, job, a, sharers)
    if not given_nan and job.train.nonfinite == "stop" and not forward_of_a.value.isfinite().all():
        # A layer's NaN alone is no mistake: the next one may replace it, or the loss leave it out.
        raise begins_with_nan(made_nan, float(forward_of_a.value.detach()))
    of_a_bits = _loss_backward(job, forward_of_a)
    before = _of_loss(source.loss)
    _refuse_other("the loss", of_a_bits, _run_loss(source, job, a), "train.loss")
    _refuse_counting("the loss", before, _of_loss(source.loss), "train.loss")
    return [*firsts, (True, of_a_bits, of_b_bits)]


def _second_sweep(source: ModelSource, job: Job, a: Sample, b: Sample, firsts: Firsts) -> None:
    """The same of layers built anew, each when those before it have last seen another microbatch."""
    for index in range(source.layer_count):
        trained, bits_of_a, bits_of_b = firsts[index]
        name, trial = _new_trial(source, job, index, trained)
        of_a, of_b = trial.run_ahead(a.x, a.seed(job, index), b.x, b.seed(job, index))
        alone = partial(_alone, source, job, index, trained, a)
        _refuse_late(name, bits_of_a, of_a.bits, alone, "model.layers")
        _refuse_other(name, bits_of_a, of_a.bits, "model.layers")
        _refuse_other(name, bits_of_b, of_b.bits, "model.layers")
        a, b = a.after(of_a), b.after(of_b)
    _, bits_of_a, bits_of_b = firsts[-1]
    forward_of_a, forward_of_b = _loss_forward(source, job, a), _loss_forward(source, job, b)
    now_of_a, now_of_b = _loss_backward(job, forward_of_a), _loss_backward(job, forward_of_b)
    _refuse_late("the loss", bits_of_a, now_of_a, partial(_run_loss, source, job, a), "train.loss")
    _refuse_other("the loss", bits_of_a, now_of_a, "train.loss")
    _refuse_other("the loss", bits_of_b, now_of_b, "train.loss")


def _refuse_unsendable(name: str, output: Pytree, target: Pytree) -> None:
    """Raises JobError where no cut could follow the layer: the target travels beside its output."""
    try:
        refuse_unsendable(output, target)
    except NotAPytree as error:
        raise returned_odd(f"{name}, with the target beside it,", error) from error


def _has_nan(tree: Pytree) -> bool:
    """Infinite numbers do not count: a mask may have them."""
    numbers = (tensor for tensor in tensors_in(tree) if is_plain(tensor) and tensor.is_floating_point())
    return any(bool(tensor.isnan().any()) for tensor in numbers)


def _new_trial(source: ModelSource, job: Job, index: int, trained: bool) -> tuple[str, Trial]:
    layer = source.build(index)
    name = _name(layer, index)
    return name, Trial(layer, name, trained, job.schedule.splits, Forwards(job))


def _alone(source: ModelSource, job: Job, index: int, trained: bool, sample: Sample) -> Bits:
    """What the layer, built anew, gives without another forward before its backward."""
    return _new_trial(source, job, index, trained)[1].run(sample.x, sample.seed(job, index), backward=True).bits


def _needs_output(
    source: ModelSource, job: Job, index: int, trained: bool, sample: Sample, undisturbed: Bits, places: frozenset[int]
) -> bool:
    """Of the layer, built anew: nobody keeps it until the next one turns out to write."""
    trial = _new_trial(source, job, index, trained)[1]
    return trial.needs_output(sample.x, sample.seed(job, index), undisturbed, places)


def _name(layer: nn.Module, index: int) -> str:
    return f"layer {index} ({type(layer).__name__})"


def _build(source: ModelSource, index: int) -> nn.Module:
    """The layer, which has to come out the same, and of its own, each time that it is built."""
    layer, again = source.build(index), source.build(index)
    sketched, built = source.sketched(index), Outline.of(layer).text
    if sketched != built:
        what = f"{_name(layer, index)} has other parameters when it is built without values"
        raise JobError(what, "model.layers", f"make the same ones on torch's meta device: {built}, not {sketched}")
    kept = kept_between(layer, again)
    if kept:
        raise source.keeps(index, kept)
    if hash_layer(index, dict(tensors_of(layer))) != hash_layer(index, dict(tensors_of(again))):
        what = f"{_name(layer, index)} has different initial values each time it is built"
        mend = "draw them from torch's, Python's or numpy's global generator, which Culm seeds"
        raise JobError(what, "model.layers", mend)
    return layer


def _try_for_a_gradient(trial: Trial, name: str, trained: bool, x: Pytree, seeds: list[int]) -> None:
    """Raises JobError unless a gradient comes to what waits for it with one of these seeds."""
    if any(trial.run(x, seed, backward=True).reached for seed in seeds):
        return
    mend = "pass on what depends on it, without detach, item or no_grad, or freeze them with requires_grad_(False)"
    if trained:
        what = f"{name} passes no gradient on: the parameters of the layers before it would never change"
    else:
        what = f"the output of {name} does not depend on its parameters: they would never change"
    raise JobError(what, "model.layers", mend)


def _run_loss(source: ModelSource, job: Job, sample: Sample) -> Bits:
    """What the loss gives, and what its backward does."""
    return _loss_backward(job, _loss_forward(source, job, sample))


def _loss_forward(source: ModelSource, job: Job, sample: Sample, sharers: Sharers = NOBODY) -> "_Loss":
    """The loss, and the output that it is taken of. ``sharers``: of that output's memory."""
    output = leaf_of(sample.x, True)
    seed_all(sample.seed(job, source.layer_count))  # a node's loss goes on from the last layer: also a seed of its own
    given = mapped(copy_of, output)  # it may write into both
    inputs = Written(given)
    try:
        with precision_of(job)():
            returned = source.loss(given, mapped(copy_of, sample.target))
    except RAISED as error:
        what = f"the loss raised {described(error)}"
        raise JobError(what, "train.loss", "let it take the last layer's output and the target") from error
    loss, counts = taken(returned, job)
    refuse_loss(loss, output)
    tally = tally_of(loss, counts)
    with precision_of(job)():
        measured = Metrics(job.train.metrics, "train").numbers(given, sample.target, job.data.microbatch)
    sharers.refuse_writing("the loss", inputs.since(output), "train.loss")
    return _Loss(loss, tally, measured, tensors_in(output))


class _Loss(NamedTuple):
    value: torch.Tensor
    tally: tuple[float, ...]
    measured: tuple[float, ...]  # by the job's metrics
    outputs: list[torch.Tensor]  # that it is taken of


def _loss_backward(job: Job, forward: _Loss) -> Bits:
    loss, tally, measured, outputs = forward
    if loss.requires_grad:
        ends = [output for output in outputs if output.requires_grad]
        run_backward([loss], "the backward of the loss", "train.loss", ends if job.schedule.splits else None)
    gradients = [output.grad for output in outputs if output.grad is not None]
    if not gradients:
        what = "the loss does not depend on the last layer's output"
        raise JobError(what, "train.loss", "compute it from the output with torch, without detach, item or no_grad")
    refuse_parameters(loss, outputs)
    told = {"count": tally[1:], "metrics": measured}
    numbers = {name: digest_of(torch.tensor(each, dtype=torch.float64)) for name, each in told.items() if each}
    return {"value": digest_of(loss), **numbers} | bits_of("gradient of the output", gradients)


def _of_loss(loss: Any) -> Bits:
    return attributes_of(loss) if isinstance(loss, nn.Module) else {}


def _bits_of_parameters(layer: nn.Module) -> Bits:
    return {name: digest_of(parameter) for name, parameter in layer.named_parameters()}


def _refuse_written(name: str, before: Bits, after: Bits) -> None:
    """Raises JobError where a parameter has changed, also in a way that torch counts as no change."""
    for parameter, bits in before.items():
        if after[parameter] != bits:
            raise changes_parameter(name, parameter)


def _other_part(first: Bits, then: Bits) -> str:
    """The name of what two runs gave otherwise; nothing where they gave the same."""
    return next((part for part in [*first, *then] if first.get(part) != then.get(part)), "")


def _refuse_other(name: str, first: Bits, then: Bits, where: str) -> None:
    """Raises JobError unless both runs gave the same."""
    part = _other_part(first, then)
    if part:
        raise JobError(f"{name} gives another {part} when it is run again on the same microbatch", where, MEND)


def _refuse_late(name: str, first: Bits, then: Bits, alone: Callable[[], Bits], where: str) -> None:
    """Raises JobError where a forward before the backward has made the difference. ``alone``: gives it without."""
    part = _other_part(first, then)
    if part.startswith("gradient") and alone() == first:
        raise reads_late(name, part, where)


def _refuse_counting(name: str, before: Bits, after: Bits, where: str) -> None:
    """Raises JobError where the same run has changed attributes once more."""
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            what = f"{name} keeps {key} as a plain attribute, and changes it whenever it runs: no copy takes that along"
            raise JobError(
                what, where, "keep it in a buffer (register_buffer), or outside the module if it is a time or a log"
            )

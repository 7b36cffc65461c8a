"""The factor that a commit puts on a step's gradients: from clip_norm, or SKIPPED where a number is not finite."""

import math
from collections.abc import Mapping, Sequence

from culm.pipeline.tally import in_order

# These functions see facts alone, and add them up in one fixed order. So every coordinator comes to the same commit
# (rule 7), and the plain loop to the same step.

# Holders read this factor as "apply nothing of the step" (rule 18). ``clip_scale`` never gives it.
SKIPPED = 0.0

# A layer's squared norm is a sum over chunks of so many elements: each parameter's gradient, flattened, is cut into
# them, and they are added in order. So the norm does not depend on the pieces in which a gradient is sent and added
# up, as long as each is of whole chunks, nor on how it lies in memory. A parameter that is smaller is one chunk.
NORM_CHUNK = 1 << 18


def norm_of(squared_norms: Sequence[float], count: float = 1.0) -> float:
    """The whole gradient's L2 norm. ``squared_norms``: as ``clip_scale`` takes them, and ``count``."""
    return math.sqrt(in_order(squared_norms)) / count


def clip_scale(squared_norms: Sequence[float], clip_norm: float | None, count: float = 1.0) -> float:
    """``min(1, clip_norm / (norm + 1e-6)) / count`` of the whole gradient; ``1 / count`` without ``clip_norm``.

    ``squared_norms`` are the layers' squared L2 norms in order of layer index: the order of summation is part of
    the result's bits. ``count``: by what the gradient is to be divided, and its norm too. SKIPPED of a count of 0, and
    of no other.
    """
    if not count:
        return SKIPPED
    if clip_norm is None:
        return 1.0 / count or math.ulp(0.0)
    norm = norm_of(squared_norms, count)
    # 1e-6 as in torch's clip_grad_norm_. A huge norm may divide down to 0.0, which holders would read as SKIPPED.
    return min(1.0, clip_norm / (norm + 1e-6)) / count or math.ulp(0.0)


def fault_in(squared_norms: Mapping[int, float], losses: Sequence[float], pipelines: int = 1) -> str:
    """The first number of a step that is not finite, in words: a loss, else a layer's gradient. Empty: all are finite.

    ``losses``: of each microbatch, pipeline by pipeline. ``squared_norms`` by layer: one is NaN where its layer's
    gradient is not finite, also in a job that clips nothing.
    """
    # Each number is asked by itself: comparisons with NaN are false, so ``min`` and ``max`` would let it pass.
    for place, loss in enumerate(losses):
        if not math.isfinite(loss):
            pipeline, microbatch = divmod(place, len(losses) // pipelines)
            return f"the loss of microbatch {microbatch}{f' of pipeline {pipeline}' if pipelines > 1 else ''} is {loss}"
    total = 0.0
    for layer in sorted(squared_norms):
        if not math.isfinite(squared_norms[layer]):
            return f"the gradient of layer {layer} is not finite"
        total += squared_norms[layer]
    return "" if math.isfinite(total) else "the norm of the whole gradient is not finite"


# In step 0 no learning rate has had an effect.
FIRST = "correct the data, the layers or the loss, as no weight has changed so far"


def stop_in_words(step: int, fault: str) -> str:
    """The one line with which a run ends at a step whose numbers are not finite."""
    mend = "lower the learning rate or clip the gradient" if step else FIRST
    mend += ', or set train.nonfinite to "skip" to leave such steps out'
    return f"step {step}: {fault}; the run stops with the weights as they were before that step; {mend}"

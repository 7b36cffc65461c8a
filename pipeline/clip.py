"""The factor that clip_norm puts on a step's gradients."""

import math
from collections.abc import Sequence


def clip_scale(squared_norms: Sequence[float], clip_norm: float | None) -> float:
    """``min(1, clip_norm / (norm + 1e-6))`` of the whole gradient; 1.0 without ``clip_norm``.

    ``squared_norms`` are the layers' squared L2 norms in order of layer index: the order of summation is part of
    the result's bits.
    """
    if clip_norm is None:
        return 1.0
    total = 0.0
    for squared in squared_norms:
        total += squared
    return min(1.0, clip_norm / (math.sqrt(total) + 1e-6))

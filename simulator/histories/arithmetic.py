"""A tiny exact arithmetic in place of torch: integers modulo a prime that remember every unit of work and its order.

A state, an activation or a gradient is one integer. Accumulation is not commutative, so work that is lost, repeated,
reordered or mixed between versions gives another number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from culm.pipeline.clip import SKIPPED
from culm.pipeline.tally import TallyForm

# The oracle is ``plain_loop``: these functions, in the order of a loop without nodes. A node calls them in
# ``node_arithmetic``. A cluster that computes each unit of work once, on the right version, in the right order, gets
# the same integers; any other one does not:
#
#     lost, or done twice      ``accumulate`` multiplies the total before it adds: every unit shifts all before it
#     in another order         the same: it is not commutative, and neither is ``add``, by which pipelines are summed
#     on another version       ``forward`` and ``backward`` mix the state in
#     of another step          ``forward`` mixes the step and the microbatch in
#     with another scale       ``apply`` mixes the scale in, exactly, as a fraction
#
#     of other neighbours      ``gathered`` mixes all that a chunk takes, in order; ``scattered`` tells apart what it
#                              gives to each
#     of another pipeline      ``forward`` mixes in the layer's buffer, where layers have some: each forward changes it
#     of another layer         a layer that uses a parameter of an earlier one adds ``used`` to that one's buckets, and
#                              applies their sums as well (``culm.pipeline.ties``)
#
# With ``uneven`` hardware a node mixes its own number into all that it computes, as if it rounded otherwise. Then there
# is no oracle, but all holders of a layer have to agree (rules 4 and 20).
#
# A state is one integer: the weight in its high bits, the buffer in the low ones.

BITS = 61
PRIME = (1 << BITS) - 1  # so large that two numbers hardly ever agree by chance


@dataclass(frozen=True, slots=True)
class Number:
    """What a key stands for in the simulation."""

    number: int
    squared_norms: tuple[float, ...] = ()
    tallies: tuple[float, ...] = ()
    totals: tuple[int, ...] = ()  # by layer, of what a stage's gradients have come to
    buffer: int | None = None  # of a gradient with pipeline 0 in it: the layer's buffer from the next step on

    @property
    def digest(self) -> int:
        return self.number

    def part(self, place: int) -> "Number":
        return Number(scattered(self.number, place))


def sample(step: int, pipeline: int, microbatch: int) -> int:
    return (step * 1_000_003 + pipeline * 611_953 + microbatch * 7919 + 17) % PRIME


def initial(layer: int) -> int:
    return (layer * 104_729 + 31) % PRIME << BITS


def buffer_of(state: int) -> int:
    return state & PRIME


def forward(state: int, buffer: int, x: int, step: int, pipeline: int, microbatch: int, layer: int) -> int:
    w = state >> BITS
    return (x * (w | 1) + w + buffer * 3 + step * 31 + pipeline * 7 + microbatch * 17 + layer) % PRIME


def gathered(numbers: Sequence[int]) -> int:
    """What a chunk takes of its neighbours: their order counts."""
    total = 0
    for number in numbers:
        total = (total * 1_000_117 + number * 11 + 5) % PRIME
    return total


def scattered(gradient: int, place: int) -> int:
    """What a backward gives to the neighbour at this place."""
    return (gradient * (2 * place + 3) + place * 29 + 1) % PRIME


def changed(buffer: int, x: int) -> int:
    """The layer's buffer after a forward of this input."""
    return (buffer * 1_000_193 + x + 1) % PRIME


def backward(state: int, gradient: int) -> int:
    return (gradient * (state >> BITS | 1) + 13) % PRIME


def accumulate(total: int, gradient: int, x: int) -> int:
    return (total * 1_000_033 + gradient * 3 + x) % PRIME


def add(left: int, right: int) -> int:
    """Of two pipelines' gradients, or of two blocks of them."""
    return (left * 1_000_211 + right * 7) % PRIME


def added(left: Number, right: Number) -> Number:
    """The same of what keys stand for."""
    return Number(add(left.number, right.number), tallies=(*left.tallies, *right.tallies), buffer=left.buffer)


def squared_norm(total: int) -> float:
    """Of one gradient in 61 it is not finite: that step is committed and changes nothing (rule 18)."""
    return math.nan if total % 61 == 0 else float(total % 10_007)


def part_of(total: int, place: int, of: int) -> int:
    """A layer's gradient in one of its buckets."""
    return total if of == 1 else (total * (2 * place + 3) + place) % PRIME


def used(total: int, bucket: int) -> int:
    """What a layer's gradient adds to an earlier layer's bucket."""
    return (total * 5 + 2 * bucket + 11) % PRIME


def apply(state: int, gradient: Sequence[Number], scale: float) -> int:
    """``gradient``: of the layer's buckets, and of those of earlier layers that it adds to."""
    if scale == SKIPPED:
        return state
    numerator, denominator = scale.as_integer_ratio()
    weight = ((state >> BITS) * 3 + numerator * 7 + denominator * 11) % PRIME
    for part in gradient:
        weight = (weight * 1_000_003 + part.number * 5) % PRIME
    return weight << BITS | (buffer_of(state) if gradient[0].buffer is None else gradient[0].buffer)


def loss_of(output: int) -> float:
    return float(output % 1_000_003)


def trained(output: int, form: TallyForm) -> tuple[float, ...]:
    """What a microbatch tells: its loss, then sum and count of each metric. These sums round, so their order shows."""
    of_metrics = ((float(output % (999_983 + i)) / 7.0, float(1 + output % (3 + i))) for i in range(len(form.measured)))
    return (loss_of(output), *chain.from_iterable(of_metrics))

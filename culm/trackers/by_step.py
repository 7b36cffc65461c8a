"""Numbers by step, for trackers that take all numbers of a step at once."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from culm.trackers.scalars import Scalar


def by_step(scalars: Sequence[Scalar]) -> Iterator[tuple[int, dict[str, float]]]:
    """Ascending, each step once."""
    ordered = sorted(scalars, key=lambda scalar: scalar.step)
    for step, of_step in groupby(ordered, key=lambda scalar: scalar.step):
        yield step, {scalar.name: scalar.value for scalar in of_step}

"""Rounds that the machine's host disturbed are done again, and the quietest count."""

from collections.abc import Callable

import pytest

from benchmarks.measure import Measure, quiet_rounds


def group(number: int) -> list[Measure]:
    return [
        Measure(name="own", unit="ratio", floor=1.0, aim=0.5, rounds=[number]),
        Measure(name="other", unit="ratio", floor=1.0, aim=0.5, rounds=[-number]),
    ]


def host(stolen: list[float]) -> Callable[[], tuple[float, float]]:
    """A machine on which that share of each round of 100 seconds is stolen."""
    told = iter([(at, 100.0 * end) for i, share in enumerate(stolen) for at, end in ((0.0, i), (100 * share, i + 1))])
    return lambda: next(told)


@pytest.mark.parametrize(
    ("stolen", "chosen", "worst"),
    [
        ([0.0, 0.002], [0, 1], 0.002),
        ([0.0, 0.2, 0.005], [0, 2], 0.005),
        ([0.3, 0.05, 0.3, 0.3, 0.002, 0.3], [4, 1], 0.05),  # after three times as many it is enough
    ],
)
def test_the_quietest_rounds_count(stolen: list[float], chosen: list[int], worst: float) -> None:
    own, other = quiet_rounds(group, 2, host(stolen))
    assert own.rounds == chosen
    assert other.rounds == [-number for number in chosen]
    assert own.stolen == other.stolen == pytest.approx(worst)

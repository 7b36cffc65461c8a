"""Throughput before and after a lost replica, from the times of commits."""

import pytest

from benchmarks.lost_replica import lost_of
from benchmarks.pipelining import WARM


def test_fewer_samples_a_step_are_less_throughput() -> None:
    # Steps of a second with 48 samples; killed in the middle of one, which ends 2 s late and with 36.
    before = [(float(i), 48) for i in range(WARM + 5)]
    last = before[-1][0]
    after = [(last + 3.0 + i, 36) for i in range(4)]
    lost = lost_of(last + 0.5, [*before, *after])
    assert lost.before == pytest.approx(48.0)
    assert lost.after == pytest.approx(36.0)
    assert lost.seconds == pytest.approx(1.5)  # from the kill, less a calm step


def test_slower_steps_are_less_throughput() -> None:
    before = [(float(i), 48) for i in range(WARM + 5)]
    after = [(before[-1][0] + 2.0 * (i + 1), 48) for i in range(4)]
    assert lost_of(before[-1][0] + 0.1, [*before, *after]).after == pytest.approx(24.0)

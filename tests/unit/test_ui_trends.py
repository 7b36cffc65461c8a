"""What nodes did over time, from the sums that they tell."""

from math import isnan
from typing import Any

import pytest

from culm.pipeline.resources import Resources
from culm.ui.trends import BINS, LINES, SAMPLES, Sample, Trends, lines, told


def sampled(nodes: int = 1, seconds: int = 100, every: float = 2.0, bubble: float = 0.25) -> Trends:
    trends = Trends()
    for n in range(nodes):
        for i in range(int(seconds / every) + 1):
            at = i * every
            share = min(1.0, bubble * (1 + n))
            trends.take(f"n{n}", Sample(incarnation=1, at=1000.0 + at, bubble=share * at, busy=at, sent=int(1e6 * at)))
    return trends


def test_two_sums_give_what_was_between_them() -> None:
    trends = sampled()
    shares = trends.bubble_share(1000.0, 1100.0)["n0"]
    assert {round(share, 6) for _, share in shares} == {0.25}
    assert {round(rate) for _, rate in trends.sent_per_second(1000.0, 1100.0)["n0"]} == {1_000_000}


def test_another_process_under_the_name_begins_anew() -> None:
    trends = sampled(seconds=10)
    trends.take("n0", Sample(incarnation=2, at=1020.0, bubble=0.0, busy=0.0, sent=0))
    trends.take("n0", Sample(incarnation=2, at=1030.0, bubble=5.0, busy=10.0, sent=100))
    shares = trends.bubble_share(1000.0, 1030.0)["n0"]
    assert [share for at, share in shares if at > 1020.0] == [0.5]
    assert [at for at, share in shares if isnan(share)] == [1020.0], "the line breaks off between them"
    assert [at for at, _ in told(shares)] == [at for at, _ in shares if at != 1020.0]


def test_memory_is_bounded_and_sums_stay_right() -> None:
    trends = sampled(seconds=20_000)
    assert len(trends._samples["n0"]) <= SAMPLES
    assert {round(share, 6) for _, share in trends.bubble_share(1000.0, 21_000.0)["n0"]} == {0.25}


def test_a_range_takes_only_what_is_in_it() -> None:
    assert all(1050.0 <= at <= 1060.0 for at, _ in sampled().bubble_share(1050.0, 1060.0)["n0"])


def test_few_nodes_have_a_line_each_and_many_a_middle() -> None:
    few = lines(sampled(3).bubble_share(1000.0, 1100.0), 1000.0, 1100.0)
    assert {p.name for p in few} == {"n0", "n1", "n2"}
    many = lines(sampled(LINES * 5, bubble=0.01).bubble_share(1000.0, 1100.0), 1000.0, 1100.0)
    assert len({p.name for p in many}) == 4
    middle = [p for p in many if p.name == "median"]
    assert 0 < len(middle) <= BINS + 1
    assert all(p.low < p.value < p.high for p in middle)
    assert middle[0].value == pytest.approx(0.205, abs=0.01)
    assert f"n{LINES * 5 - 1}" in {p.name for p in many}, "the highest is named"


def test_nothing_told_is_nothing_drawn() -> None:
    assert lines(Trends().bubble_share(0.0, 1.0), 0.0, 1.0) == []


def looked(seconds: float, cpu: float, resident: int = 250, **more: Any) -> Resources:
    return Resources(
        seconds=seconds, cpu_seconds=cpu, processors=2.0, resident_bytes=resident, memory_bytes=1000, **more
    )


def test_a_share_of_processors_is_by_the_nodes_own_clock() -> None:
    """A node looks every 5 s, and samples come every 2 s: between two looks nothing is told."""
    trends = Trends()
    for i in range(50):
        at = 2.0 * i
        seen = at - at % 5.0
        trends.take(
            "n0", Sample(incarnation=1, at=1000.0 + at, bubble=0.0, busy=at, sent=0, took=looked(seen, 1.5 * seen))
        )
    shares = trends.cpu_share(1000.0, 1100.0)["n0"]
    assert len(shares) > 10
    assert {round(share, 6) for _, share in shares} == {0.75}


def test_one_look_that_the_log_tells_rounded_is_no_time_without_work() -> None:
    trends = Trends()
    for i, (seconds, cpu) in enumerate(((5.0, 5.0), (10.0004, 10.0004), (10.001, 10.0), (15.0, 15.0))):
        trends.take(
            "n0", Sample(incarnation=1, at=1000.0 + 5 * i, bubble=0.0, busy=i, sent=0, took=looked(seconds, cpu))
        )
    assert {round(share, 2) for _, share in trends.cpu_share(1000.0, 1020.0)["n0"]} == {0.5}


def test_memory_is_what_was_there_at_the_last_look() -> None:
    trends = Trends()
    for i in range(4):
        trends.take(
            "n0",
            Sample(
                incarnation=1, at=1000.0 + 10 * i, bubble=0.0, busy=i, sent=0, took=looked(10.0 * i, 0.0, 100 * (i + 1))
            ),
        )
    assert [share for _, share in trends.memory_share(1000.0, 1040.0)["n0"]] == [0.2, 0.3, 0.4]


def test_who_has_no_accelerator_has_no_line() -> None:
    trends = Trends()
    for i in range(4):
        busy = looked(10.0 * i, 0.0, accelerator_busy=0.5, accelerator_used_bytes=30, accelerator_bytes=40)
        trends.take("n0", Sample(incarnation=1, at=1000.0 + 10 * i, bubble=0.0, busy=i, sent=0, took=busy))
        silent = looked(10.0 * i, 0.0, accelerator_used_bytes=10, accelerator_bytes=40)
        trends.take("n1", Sample(incarnation=1, at=1000.0 + 10 * i, bubble=0.0, busy=i, sent=0, took=silent))
        trends.take(
            "n2", Sample(incarnation=1, at=1000.0 + 10 * i, bubble=0.0, busy=i, sent=0, took=looked(10.0 * i, 0.0))
        )
        trends.take("n3", Sample(incarnation=1, at=1000.0 + 10 * i, bubble=0.0, busy=i, sent=0))
    assert set(trends.accelerator_share(1000.0, 1040.0)) == {"n0"}
    memory = trends.accelerator_memory_share(1000.0, 1040.0)
    assert {name: points[-1][1] for name, points in memory.items()} == {"n0": 0.75, "n1": 0.25}
    assert set(trends.cpu_share(1000.0, 1040.0)) == {"n0", "n1", "n2"}, "an older node tells nothing"

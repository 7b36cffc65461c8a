"""What nodes did over time, from the sums that they tell."""

from math import isnan

import pytest

from culm.ui.trends import BINS, LINES, SAMPLES, Sample, Trends, lines, told


def sampled(nodes: int = 1, seconds: int = 100, every: float = 2.0, bubble: float = 0.25) -> Trends:
    trends = Trends()
    for n in range(nodes):
        for i in range(int(seconds / every) + 1):
            at = i * every
            share = min(1.0, bubble * (1 + n))
            trends.take(f"n{n}", Sample(1, 1000.0 + at, share * at, at, int(1e6 * at)))
    return trends


def test_two_sums_give_what_was_between_them() -> None:
    trends = sampled()
    shares = trends.bubble_share(1000.0, 1100.0)["n0"]
    assert {round(share, 6) for _, share in shares} == {0.25}
    assert {round(rate) for _, rate in trends.sent_per_second(1000.0, 1100.0)["n0"]} == {1_000_000}


def test_another_process_under_the_name_begins_anew() -> None:
    trends = sampled(seconds=10)
    trends.take("n0", Sample(2, 1020.0, 0.0, 0.0, 0))
    trends.take("n0", Sample(2, 1030.0, 5.0, 10.0, 100))
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

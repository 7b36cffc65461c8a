"""The benchmark of dropped samples: with nothing dropped it is the plain loop, to the bit, and its page is as made."""

import json

import pytest

from benchmarks.sample_dropping import RESULTS, added, dropping, exact, paired, share_of


def test_with_nothing_dropped_it_is_the_plain_loop_to_the_bit() -> None:
    curve = dropping(seed=1, share=0.0, steps=4, every=2)
    assert curve == exact(seed=1, steps=4, every=2)
    assert [at for at, _, _ in curve] == [2, 4]


def test_a_run_that_drops_samples_takes_more_steps_for_as_many() -> None:
    curve = dropping(seed=1, share=0.5, steps=4, every=2)
    assert curve == dropping(seed=1, share=0.5, steps=4, every=2)
    last, before = curve[-1], curve[-2]
    assert last[0] > 4
    assert last[1] >= 4 * 32 > before[1]


def test_a_chance_for_an_hour_as_a_share_of_samples() -> None:
    """Twelve machines, each lost with ln 2 an hour: 8.32 times an hour a pipeline is out for 83 s."""
    assert share_of(0.5) == pytest.approx(8.3178 * 83 / (3600 + 8.3178 * 83), rel=1e-4)
    assert share_of(0.01) < 0.003


def test_pipelines_are_added_as_the_tree_does() -> None:
    assert added([1e16, -1e16, 0.5, 0.25]) == 0.75
    assert added([0.5, 1e16, -1e16]) == 0.0


def test_differences_are_taken_seed_by_seed() -> None:
    curves = {"exact": [[[10, 320, 2.0]], [[10, 320, 3.0]]], "x": [[[10, 160, 2.5], [20, 320, 2.25]]] * 2}
    curves["x"] = [[[10, 160, 2.5], [20, 320, 2.25]], [[10, 160, 3.5], [20, 320, 2.75]]]
    results = {"steps": 10, "curves": curves}
    assert paired(results, "x", by_samples=False) == (0.5, 0.0)
    assert paired(results, "x", by_samples=True) == (0.0, 0.25)


def test_the_page_and_the_picture_say_what_was_measured() -> None:
    from benchmarks import sample_dropping_page as page

    results = json.loads(RESULTS.read_text())
    assert page.PAGE.read_text() == page.page(results), "run python -m benchmarks.sample_dropping --page"

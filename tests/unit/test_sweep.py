"""The sweep of docs/value.md: an interrupted one comes to the same, and its tables hold what it found."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

from benchmarks import bubbles, sweep, tables, traces
from benchmarks.strategies import BAMBOO, RESTART, STRATEGIES, WORKLOADS
from benchmarks.sweep import Cells, Task, add, missing
from culm.simulator.markets.workload import PUBLISHED, fitted, on_machines

VALUES = [{"throughput": x, "value": 2 * x} for x in (3.0, 4.0, 8.0)]


def task(seed: int, *strategies: str) -> Task:
    return Task("bert", 0.1, seed, strategies)


def test_a_sweep_goes_on_seed_by_seed_where_it_was() -> None:
    cells: Cells = {}
    for seed, values in enumerate(VALUES, 1):
        left = next(missing(cells, ["bert"], [0.1], 3, [BAMBOO]))
        assert left == task(seed, BAMBOO)
        add(cells, left, {BAMBOO: values})
    assert list(missing(cells, ["bert"], [0.1], 3, [BAMBOO])) == []
    assert next(missing(cells, ["bert"], [0.1], 3, [BAMBOO, RESTART])) == task(1, RESTART)
    kept = cells["bert 0.10"][BAMBOO]
    assert sweep.mean(kept, "throughput") == pytest.approx(mean(x["throughput"] for x in VALUES))
    assert sweep.deviation(kept, "throughput") == pytest.approx(stdev(x["throughput"] for x in VALUES))


def test_a_seed_is_neither_left_out_nor_taken_twice() -> None:
    cells: Cells = {}
    add(cells, task(1, BAMBOO), {BAMBOO: VALUES[0]})
    for seed in (1, 3):
        with pytest.raises(AssertionError):
            add(cells, task(seed, BAMBOO), {BAMBOO: VALUES[0]})


def test_the_published_numbers_of_seeds_are_the_aim() -> None:
    left = list(missing({}, ["gnmt", "bert"], [0.5], 0, [BAMBOO]))
    assert [sum(each.workload == name for each in left) for name in ("bert", "gnmt")] == [400, 50]
    assert {each.workload for each in left[:2]} == {"bert", "gnmt"}, "one seed of every cell comes first"


def test_the_kept_sums_are_those_of_the_seeds() -> None:
    """The cheap strategies of a cell, all its seeds again if they are few."""
    cells = sweep.read()
    kept = cells["gnmt 0.05"][BAMBOO]
    again: Cells = {}
    seeds = min(3, int(kept["seeds"]))
    for seed in range(1, seeds + 1):
        add(again, *sweep.run(Task("gnmt", 0.05, seed, (BAMBOO, RESTART))))
    if seeds == kept["seeds"]:
        for strategy in (BAMBOO, RESTART):
            found = again["gnmt 0.05"][strategy]["sum"]
            assert found == pytest.approx({name: cells["gnmt 0.05"][strategy]["sum"][name] for name in found})


def test_more_pipelines_than_were_published_take_less_time_each() -> None:
    for work in WORKLOADS.values():
        seconds = [work.step_seconds[d] for d in sorted(work.step_seconds)]
        assert seconds == sorted(seconds, reverse=True), work.name
        assert max(work.step_seconds) == 48 // work.stages


def test_microbatches_are_alike_and_the_published_times_are_met() -> None:
    for name, work in PUBLISHED.items():
        fit = fitted(work)
        assert work.samples_per_step % fit.microbatches == 0
        # ResNet's three pipelines are as slow as two and a half.
        assert max(map(abs, fit.off.values())) < (0.09 if name == "resnet" else 0.045), name
    assert on_machines(PUBLISHED["bert"], 48).step_seconds == PUBLISHED["bert"].step_seconds
    with pytest.raises(ValueError, match="264 samples of bert cannot be divided into 7 equal pipelines"):
        fitted(PUBLISHED["bert"], 7)


def test_drawn_markets_need_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CULM_TRACES", raising=False)
    assert [name for name, _ in traces.markets()] == ["drawn, one by one", "drawn, in bulk"]
    (tmp_path / "a.csv").write_text("0,add,n0\n60000,remove,n0\n")
    monkeypatch.setenv("CULM_TRACES", str(tmp_path))
    assert next(name for name, _ in traces.markets()) == "a.csv"


def test_bubbles_are_told_stage_by_stage() -> None:
    measured = json.loads(bubbles.LAYERS.read_text())
    for name, work in PUBLISHED.items():
        told = bubbles.bubbles(work, measured[name])
        assert len(told["room"]) == len(told["bubble"]) == work.stages
        assert all(0.0 <= share <= 1.0 for share in told["room"])
        assert 0.0 <= told["longer_filled"] <= told["longer_plain"] < 1.0
        assert told["peers_redone"] < told["eager_redone"] <= told["lazy_redone"]


def test_the_page_of_tables_is_made_from_the_results() -> None:
    page = tables.page()
    assert page == tables.PAGE.read_text(), "python -m benchmarks.tables makes it again"
    assert all(f"| {strategy} |" in page for strategy in STRATEGIES)

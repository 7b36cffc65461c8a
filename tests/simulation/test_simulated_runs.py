"""Culm and others over traces: nothing is lost on the way, and it is the real machine that decides."""

import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from culm.__main__ import main
from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance, validate
from culm.simulator.markets.account import Row, Use
from culm.simulator.markets.bamboo import Bamboo
from culm.simulator.markets.compare import culm, rows
from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.job_profile import Cluster, Layer, Profile, of_published
from culm.simulator.markets.other_systems import CHECKPOINTS, OOBLECK_LIKE, RULES, VARUNA, Peer, Rule, on_demand, rate
from culm.simulator.markets.random_market import Zone, hourly, zoned
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import HOP, PUBLISHED, summing

SOAK = os.environ.get("CULM_SOAK") == "1"

BERT = PUBLISHED["bert"]
HOUR = 3600.0
SMALL = Profile(
    name="small",
    layers=(Layer(0.01, 0.02, 1_000_000),) * 6,
    microbatches=8,
    samples_per_step=32,
    steps=3000,
    stages=3,
    most_stages=4,
    source="made up",
)


def checked(state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """The real machine, its state looked over after every event."""
    state, commands = advance(state, report, now)
    validate(state)
    return state, commands


def machines(count: int) -> list[Change]:
    return [Change(at=0.0, kind="add", node=f"node{i}") for i in range(count)]


# ---- Bamboo ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probability", "throughput", "cost", "value"),
    [
        pytest.param(0.01, 149, 39.8, 3.70, marks=pytest.mark.slow),
        pytest.param(0.10, 132, 37.0, 3.54, marks=pytest.mark.slow),
        (0.50, 83, 24.5, 3.31),
    ],
)
def test_bamboo_as_published_gives_what_its_released_simulator_gives(
    probability: float, throughput: float, cost: float, value: float
) -> None:
    """Means over 400 seeds there, over the first 40 of ours here; the whole sweep is ``python -m benchmarks.sweep``."""
    found = [Bamboo(hourly(seed, BERT.machines, probability, 60), BERT).run() for seed in range(40)]
    assert mean(row.throughput for row in found) == pytest.approx(throughput, rel=0.05)
    assert mean(row.cost_per_hour for row in found) == pytest.approx(cost, rel=0.05)
    assert mean(row.value for row in found) == pytest.approx(value, rel=0.05)


def test_lost_work_is_charged_to_bamboo_where_asked_for() -> None:
    changes = hourly(3, BERT.machines, 0.5, 40)
    published, charged = Bamboo(changes, BERT).run(), Bamboo(changes, BERT, True).run()
    assert published.fatal > 0
    assert published.spent[Use.ROLLBACK] == 0.0 < charged.spent[Use.ROLLBACK]
    assert charged.seconds > published.seconds


# ---- the others ------------------------------------------------------------------------------------------------------


def test_on_demand_is_the_published_figure() -> None:
    row = on_demand(BERT, HOUR)
    assert (row.throughput, row.cost_per_hour, row.value) == pytest.approx((105.18, 61.2, 1.7186), rel=1e-4)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_without_losses_every_rule_trains_at_the_published_rate(rule: Rule) -> None:
    row = Peer(machines(48), BERT, rule).run(10 * HOUR)
    assert row.throughput == pytest.approx(BERT.samples_per_step / BERT.step_seconds[4])
    assert row.fatal == row.preemptions == 0


def test_a_loss_costs_what_the_rule_says() -> None:
    gone = [
        *machines(48),
        Change(at=5 * HOUR, kind="remove", node="node7"),
        Change(at=5 * HOUR, kind="add", node="node48"),
    ]
    calm = {rule.name: Peer(machines(48), BERT, rule).run(6 * HOUR) for rule in RULES}
    # Oobleck trains again when the new machine is ready, and stops once more to have four whole pipelines.
    for rule, times in ((VARUNA, 1), (OOBLECK_LIKE, 2)):
        row = Peer(gone, BERT, rule).run(6 * HOUR)
        more = row.spent[Use.WAITING] - calm[rule.name].spent[Use.WAITING]
        assert more == pytest.approx(times * rule.pause)
    row = Peer(gone, BERT, CHECKPOINTS).run(6 * HOUR)
    assert 0.0 < row.spent[Use.ROLLBACK] <= 2 * CHECKPOINTS.writes


def test_nodes_beyond_whole_pipelines_are_of_use_only_to_some() -> None:
    assert rate(BERT, 35, any_nodes=False) == rate(BERT, 24, any_nodes=False) == 1 / BERT.step_seconds[2]
    assert rate(BERT, 24, any_nodes=True) < rate(BERT, 35, any_nodes=True) < rate(BERT, 36, any_nodes=True)
    assert rate(BERT, 11, any_nodes=True) == 0.0
    assert rate(BERT, 100, any_nodes=True) == 1 / BERT.step_seconds[4]


# ---- Culm ------------------------------------------------------------------------------------------------------------


def test_the_profile_takes_as_long_as_the_published_steps() -> None:
    profile = replace(of_published(BERT), most_stages=12)
    hops = 2 * (BERT.stages - 1) * HOP
    assert profile.least_step_seconds() + hops == pytest.approx(BERT.step_seconds[1], rel=0.01)
    for pipelines in (2, 3, 4):
        part = replace(profile, microbatches=profile.microbatches // pipelines)
        seconds = part.least_step_seconds() + hops + summing(BERT, pipelines)
        assert seconds == pytest.approx(BERT.step_seconds[pipelines], rel=0.02)


def test_without_losses_culm_is_as_fast_as_its_timetable() -> None:
    profile = replace(SMALL, most_stages=3)
    cluster = Cluster(hop_seconds=0.0, bytes_per_second=1e18, lazy_share=0.0, commit_seconds=0.0)
    row = CulmRun(machines(4), profile, cluster, Choice(redundancy="lazy")).run()
    assert row.throughput == pytest.approx(32 / profile.least_step_seconds())
    assert row.steps == 3000
    assert row.exposed_seconds == 0.0
    assert {use for use, seconds in row.spent.items() if seconds > 1e-6} == {Use.USEFUL, Use.WAITING}


def test_a_loss_costs_culm_a_part_of_a_step_and_an_exposure() -> None:
    changes = [*machines(5), Change(at=60.0, kind="remove", node="node1")]
    row = CulmRun(changes, replace(SMALL, most_stages=3), Cluster(), Choice(redundancy="lazy")).run()
    assert row.fatal == 0
    assert 0.0 < row.spent[Use.REDONE] < 2.0
    assert 0.0 < row.exposed_seconds < 5.0


def test_without_redundancy_a_loss_goes_back_to_the_checkpoint() -> None:
    changes = [*machines(5), Change(at=200.0, kind="remove", node="node1")]
    choice = Choice(redundancy="off", checkpoint_steps=100)
    row = CulmRun(changes, replace(SMALL, most_stages=3), Cluster(), choice).run()
    assert row.fatal == 1
    assert 0.0 < row.spent[Use.ROLLBACK] < 2 * 100 * 0.3
    assert row.steps == 3000


def test_a_notice_hands_over_in_time_and_nothing_is_redone() -> None:
    changes = [
        *machines(5),
        Change(at=60.0, kind="notice", node="node1", seconds_left=120.0),
        Change(at=180.0, kind="remove", node="node1"),
    ]
    row = CulmRun(changes, replace(SMALL, most_stages=3), Cluster(), Choice(redundancy="lazy"), checked).run()
    assert row.spent[Use.REDONE] == pytest.approx(0.0, abs=1e-6)
    assert row.preemptions == 1


def test_tensors_between_zones_are_paid_for() -> None:
    layer = Layer(0.01, 0.02, 1_000_000, activation_bytes=500_000)
    profile = Profile(
        name="wide", layers=(layer,) * 3, microbatches=8, samples_per_step=32, steps=100, stages=3, most_stages=3
    )
    changes = [Change(at=0.0, kind="add", node=f"node{i}", zone=zone) for i, zone in enumerate("aba")]
    free, dear = (CulmRun(changes, profile, Cluster(per_gb_between_zones=price), Choice()).run() for price in (0, 0.02))
    # Owners in a, b, a: both boundaries are crossed there and back; and every standby is placed in the other zone.
    step = 2 * 2 * 8 * 500_000 + 3 * 4 * 1_000_000
    assert dear.cost - free.cost == pytest.approx(100 * step / 1e9 * 0.02)
    assert dear.seconds == free.seconds


def histories(count: int) -> list[tuple[int, list[Change]]]:
    zones = [
        Zone(name="a", machines=3, price=0.9, lost_per_hour=6.0, bulk_per_hour=1.0, wait_seconds=60.0),
        Zone(name="b", machines=3, price=0.8, lost_per_hour=6.0, wait_seconds=60.0),
    ]
    return [(seed, zoned(seed, zones, HOUR, 30.0 if seed % 3 == 0 else 0.0)) for seed in range(count)]


@pytest.mark.parametrize("redundancy", ["off", "lazy", "eager", "auto"])
def test_random_histories_conserve_steps_seconds_and_bytes(redundancy: str) -> None:
    """``CulmRun`` and ``Account`` assert it at the end of every run; the machine's own invariants after every event."""
    for seed, changes in histories(12 if SOAK else 6):
        choice = Choice(redundancy=redundancy, machines=6, checkpoint_steps=50)
        row = CulmRun(changes, SMALL, Cluster(starts_up=10.0), choice, checked).run(HOUR)
        assert row.samples == row.steps * SMALL.samples_per_step, f"seed {seed}"
        assert sum(row.spent.values()) == pytest.approx(row.seconds), f"seed {seed}"


@pytest.mark.parametrize("redundancy", ["off", pytest.param("lazy", marks=pytest.mark.slow), "auto"])
def test_steps_that_are_passed_over_would_have_changed_nothing(redundancy: str) -> None:
    for seed, changes in histories(3 if SOAK else 1):
        choice = Choice(redundancy=redundancy, machines=6, checkpoint_steps=50)
        fast = CulmRun(changes, SMALL, Cluster(), choice)
        slow = CulmRun(changes, SMALL, Cluster(), replace(choice, passes_over=False))
        one, other = fast.run(HOUR), slow.run(HOUR)
        assert _numbers(one) == pytest.approx(_numbers(other), rel=1e-6, abs=1e-6), f"seed {seed}"
        assert fast.decisions < slow.decisions


def _numbers(row: Row) -> list[float]:
    return [row.steps, row.fatal, row.preemptions, row.cost, row.throughput, row.value, *row.spent.values()]


def test_the_same_trace_gives_the_same_rows() -> None:
    changes = hourly(5, BERT.machines, 0.25, 1)
    assert list(rows(changes, BERT, HOUR / 3, Cluster())) == list(rows(changes, BERT, HOUR / 3, Cluster()))


def test_the_machine_that_decides_is_the_coordinators() -> None:
    told: list[type] = []

    def listening(state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
        told.append(type(report))
        return advance(state, report, now)

    CulmRun(
        [*machines(5), Change(at=60.0, kind="remove", node="node1")],
        SMALL,
        Cluster(),
        Choice(redundancy="lazy"),
        listening,
    ).run()
    assert {
        reports.Joined,
        reports.Available,
        reports.Ready,
        reports.PeerLost,
        reports.StreamBroken,
        reports.CaughtUp,
    } <= set(told)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_every_strategy_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    words = ["simulate", "--hourly", "0.2", "--hours", "0.25", "--seed", "4", "--json"]
    assert main([*words, "--write-trace", str(path)]) == 0
    drawn = json.loads(capsys.readouterr().out)
    alone = [f"culm, {redundancy}" for redundancy in ("off", "lazy", "eager", "auto")]
    assert [row["strategy"] for row in drawn["rows"]][-5:] == [*alone, "culm, grid"]
    assert len(drawn["rows"]) == 13
    assert main(["simulate", "--trace", str(path), "--hours", "0.25", "--seed", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == drawn


def test_the_command_draws_where_the_time_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vl_convert")
    path = tmp_path / "rows.svg"
    assert main(["simulate", "--hourly", "0.2", "--hours", "0.5", "--plot", str(path)]) == 0
    drawn = path.read_text()
    assert drawn.startswith("<svg")
    assert all(words in drawn for words in ("culm, lazy", "checkpoint and restart", "bert, 0.5 h", "rollback"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--hourly", "0.1", "--plot", "no/such/folder.svg"],
            "--plot: 'no/such/folder.svg' cannot be written: its folder does not exist",
        ),
        (["--trace", "nowhere.csv"], "nowhere.csv: the trace cannot be read (No such file or directory)"),
        (["--hourly", "1.5"], "--hourly: '1.5' is too large; give a number of 0 or more, up to 1"),
        (["--hourly", "0.1", "--hours", "-1"], "--hours: '-1' is too small"),
        (["--hourly", "0.1", "--price", "-1"], "--price: '-1' is too small"),
    ],
)
def test_bad_words_are_told_in_a_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_culm_is_set_up_to_checkpoint_every_ten_minutes() -> None:
    run = culm(machines(30), BERT, Cluster(), "lazy")
    assert run.choice.checkpoint_steps * of_published(BERT).least_step_seconds() == pytest.approx(600, rel=0.01)

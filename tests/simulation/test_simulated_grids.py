"""Culm over traces with several pipelines: the coordinator's own shapes, and nothing is lost on the way."""

import os
from dataclasses import replace

import pytest

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance, validate
from culm.simulator.markets.account import Row, Use
from culm.simulator.markets.compare import PIPELINES, culm
from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.job_profile import Cluster, Layer, Profile, of_published
from culm.simulator.markets.random_market import Zone, zoned
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import PUBLISHED, on_machines

SOAK = os.environ.get("CULM_SOAK") == "1"

HOUR = 3600.0
SMALL = Profile(
    name="small",
    layers=(Layer(0.01, 0.02, 1_000_000, 10_000),) * 6,
    microbatches=2,
    pipelines=4,
    samples_per_step=32,
    steps=3000,
    stages=2,
    most_stages=3,
    source="made up",
)
IDEAL = Cluster(hop_seconds=0.0, bytes_per_second=1e18, lazy_share=0.0, commit_seconds=0.0)
EIGHT = Choice(machines=8, begins_with=8)
NEVER = 1e9  # settle_seconds of a run whose shape is left as it is


class Listening:
    """The real machine, its state looked over after every event; and the shapes that it chose, as replicas x stages."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    def __call__(self, state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
        state, commands = advance(state, report, now)
        validate(state)
        if state.plan is not None:
            shape = (min(len(stage.distinct_owners) for stage in state.plan.stages), len(state.plan.stages))
            if not self.shapes or self.shapes[-1] != shape:
                self.shapes.append(shape)
        return state, commands


def machines(count: int) -> list[Change]:
    return [Change(at=0.0, kind="add", node=f"node{i}", zone="ab"[i % 2]) for i in range(count)]


@pytest.mark.parametrize(("nodes", "replicas", "microbatches"), [(2, 1, 8), (4, 2, 4), (6, 3, 4), (8, 4, 2), (9, 4, 2)])
def test_without_losses_a_step_takes_as_long_as_its_busiest_replica(
    nodes: int, replicas: int, microbatches: int
) -> None:
    listening = Listening()
    choice = Choice(machines=nodes, begins_with=nodes, settle_seconds=NEVER)
    row = CulmRun(machines(nodes), SMALL, IDEAL, choice, listening).run()
    assert listening.shapes == [(replicas, 2)]
    assert row.throughput == pytest.approx(32 / ((microbatches + 1) * 3 * 0.03))
    assert row.exposed_seconds == row.fatal == 0
    assert {use for use, seconds in row.spent.items() if seconds > 1e-6} == {Use.USEFUL, Use.WAITING}


def test_replicas_need_no_standby_and_one_owner_does() -> None:
    shares = {}
    for nodes in (2, 8):
        choice = Choice(machines=nodes, begins_with=nodes, settle_seconds=NEVER)
        row = CulmRun(machines(nodes), SMALL, Cluster(), choice).run()
        shares[nodes] = row.spent[Use.REDUNDANCY] / row.spent[Use.USEFUL]
    assert shares == {2: pytest.approx(Cluster().lazy_share), 8: 0.0}


def test_a_lost_node_costs_its_peers_first_and_then_the_shape_follows() -> None:
    changes = [*machines(8), Change(at=60.0, kind="remove", node="node1")]
    listening = Listening()
    row = CulmRun(changes, SMALL, Cluster(), EIGHT, listening).run()
    # Two pipelines on one owner are as slow as two replicas of three stages would be without one of seven nodes.
    assert listening.shapes[:2] == [(4, 2), (3, 2)]
    assert row.fatal == 0
    assert 0.0 < row.spent[Use.REDONE] < 1.0
    assert row.steps == SMALL.steps


def test_the_only_node_that_has_gone_is_not_there_for_ever() -> None:
    """With nobody else to be heard its silence counted for nothing, and nobody looked again: a step waited for it."""
    early = [Change(at=0.0, kind="add", node="early"), Change(at=100.0, kind="remove", node="early")]
    later = [replace(change, at=600.0) for change in machines(4)]
    row = CulmRun([*early, *later], SMALL, Cluster(), Choice(machines=4, begins_with=4)).run(86_400.0)
    assert row.steps == SMALL.steps
    assert row.fatal == 0
    assert row.seconds < 3_600.0


def test_nodes_that_come_change_the_shape() -> None:
    changes = [*machines(4), *(Change(at=100.0, kind="add", node=f"late{i}") for i in range(4))]
    listening = Listening()
    CulmRun(changes, SMALL, Cluster(), Choice(machines=8, begins_with=4), listening).run()
    # Four replicas of the whole model wait for nobody; twice as many nodes cut it in two.
    assert listening.shapes == [(2, 2), (4, 1), (4, 2)]


def test_all_owners_of_a_stage_together_go_back_to_the_checkpoint() -> None:
    one, other = (
        CulmRun(
            [*machines(4), *(Change(at=100.0, kind="remove", node=f"node{i}") for i in gone)],
            SMALL,
            Cluster(),
            Choice(machines=4, begins_with=4, checkpoint_steps=50, settle_seconds=NEVER),
        ).run()
        for gone in ((0, 1), (0, 2))
    )
    # Zones a and b, a replica in each: node0 and node2 are a replica, node0 and node1 all owners of a stage.
    assert (one.fatal, other.fatal) == (1, 0)
    assert one.spent[Use.ROLLBACK] > 0.0 == other.spent[Use.ROLLBACK]


def test_tensors_between_zones_are_paid_for() -> None:
    choice = Choice(machines=4, begins_with=4, settle_seconds=NEVER)
    free, dear = (
        CulmRun(machines(4), replace(SMALL, steps=100), Cluster(per_gb_between_zones=price), choice).run()
        for price in (0, 0.02)
    )
    # A replica lies in one zone: no activation crosses. Of every layer one partial sum goes over, and the sum back.
    step = 2 * 6 * 4 * 1_000_000
    assert dear.cost - free.cost == pytest.approx(100 * step / 1e9 * 0.02)


def test_by_value_a_shape_that_sends_less_between_zones_is_worth_a_longer_step() -> None:
    changes = [*machines(4), *(Change(at=100.0, kind="add", node=f"late{i}", zone="ab"[i % 2]) for i in range(4))]
    choice, dear = Choice(machines=8, begins_with=4), Cluster(per_gb_between_zones=0.02)
    by_speed, by_value = (CulmRun(changes, replace(SMALL, by_value=by), dear, choice).run() for by in (False, True))
    assert by_value.cost < 0.8 * by_speed.cost
    assert by_value.seconds > by_speed.seconds
    free = CulmRun(changes, replace(SMALL, by_value=True), Cluster(), choice).run()
    assert free.seconds == by_speed.seconds, "where nothing crosses at a price the fastest is the cheapest"


def histories(count: int) -> list[tuple[int, list[Change]]]:
    zones = [
        Zone(name="a", machines=4, price=0.9, lost_per_hour=6.0, bulk_per_hour=1.0, wait_seconds=60.0),
        Zone(name="b", machines=4, price=0.8, lost_per_hour=6.0, wait_seconds=60.0),
    ]
    return [(seed, zoned(seed, zones, HOUR, 30.0 if seed % 3 == 0 else 0.0)) for seed in range(count)]


@pytest.mark.parametrize("redundancy", ["off", "lazy", "eager", "auto"])
def test_random_histories_conserve_steps_seconds_and_bytes(redundancy: str) -> None:
    """``CulmRun`` and ``Account`` assert it at the end of every run; the machine's own invariants after every event."""
    for seed, changes in histories(8 if SOAK else 4):
        listening = Listening()
        choice = Choice(redundancy=redundancy, machines=8, checkpoint_steps=50)
        row = CulmRun(changes, SMALL, Cluster(starts_up=10.0), choice, listening).run(HOUR)
        assert row.samples == row.steps * SMALL.samples_per_step, f"seed {seed}"
        assert sum(row.spent.values()) == pytest.approx(row.seconds), f"seed {seed}"
        assert len(set(listening.shapes)) > 2, f"seed {seed}"


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in ("off", "auto")]  # those run in test_simulated_runs


@pytest.mark.parametrize("redundancy", ["lazy", *SLOW])
def test_steps_that_are_passed_over_would_have_changed_nothing(redundancy: str) -> None:
    profile, cluster = replace(SMALL, by_value=redundancy == "lazy"), Cluster(per_gb_between_zones=0.02)
    for seed, changes in histories(1):
        choice = Choice(redundancy=redundancy, machines=8, checkpoint_steps=50)
        fast = CulmRun(changes, profile, cluster, choice)
        slow = CulmRun(changes, profile, cluster, replace(choice, passes_over=False))
        one, other = fast.run(HOUR), slow.run(HOUR)
        assert _numbers(one) == pytest.approx(_numbers(other), rel=1e-6, abs=1e-6), f"seed {seed}"
        assert fast.decisions < slow.decisions


def _numbers(row: Row) -> list[float]:
    return [row.steps, row.fatal, row.preemptions, row.cost, row.throughput, row.value, *row.spent.values()]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_shape_takes_as_long_as_published_and_the_coordinator_finds_no_longer_one(name: str) -> None:
    work = PUBLISHED[name]
    cluster = replace(IDEAL, bytes_per_second=Cluster().bytes_per_second)
    choice = Choice(machines=work.machines)
    profile = of_published(work, 4)
    same = CulmRun(machines(work.machines), replace(profile, most_stages=work.stages), cluster, choice)
    free = CulmRun(machines(work.machines), profile, cluster, choice)
    same.run(HOUR)
    free.run(HOUR)
    assert same.calm_seconds() <= work.step_seconds[4] * 1.055, "ResNet's times fit pipelines less well than others"
    assert free.calm_seconds() <= same.calm_seconds() * 1.001


def test_the_grid_of_the_tables_runs_on_all_machines() -> None:
    bert = on_machines(PUBLISHED["bert"], 48)
    run = culm(machines(48), bert, Cluster(), "lazy", PIPELINES["bert"])
    row = run.run(HOUR)
    assert run.profile.pipelines == 12
    assert row.fatal == 0
    assert row.nodes == pytest.approx(48)
    assert run.calm_seconds() < 1.02 * bert.step_seconds[4]
    assert run.choice.checkpoint_steps * bert.step_seconds[4] == pytest.approx(600, rel=0.01)

"""The ways that a plan weighs, what a formula says of each, and which of them are simulated."""

from dataclasses import replace
from pathlib import Path

import pytest

from culm.pipeline.job import load_job
from culm.simulator.markets import first_guess
from culm.simulator.markets.advice import simulate
from culm.simulator.markets.at_commits import at_commit
from culm.simulator.markets.first_guess import Conditions, Guess, rates_of, with_checkpoints
from culm.simulator.markets.job_profile import Cluster, Layer, Profile
from culm.simulator.markets.trace import Change
from culm.simulator.markets.ways import Kind, Way, apart, settings_of, ways
from tests.unit.planned import PROFILE, way_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"


def test_every_number_of_machines_is_tried_with_stages_for_all_but_the_spares() -> None:
    found = ways(PROFILE, [3, 8])
    assert {(way.machines, way.stages) for way in found} == {(3, 3), (3, 2), (3, 1), (8, 6)}
    assert {(way.redundancy, way.copies) for way in found} == {
        ("off", 1),
        *((redundancy, copies) for redundancy in ("lazy", "eager", "auto") for copies in (2, 3)),
    }


def test_machines_zones_and_the_place_of_standbys_are_tried_together() -> None:
    kinds = (Kind(name="a"), Kind(name="b"))
    found = ways(PROFILE, [3], kinds, ("x", "y"), accelerated=True)
    settings = {(way.kind, way.zones, way.standby) for way in found if way.redundancy == "lazy"}
    assert settings == {(k, z, s) for k in "ab" for z in ((), ("x",), ("y",)) for s in ("device", "host")}
    assert len(set(found)) == len(found)
    assert {way.standby for way in ways(PROFILE, [3])} == {"device"}, "on a CPU both are one"


def test_replicas_are_each_others_copies() -> None:
    found = ways(replace(PROFILE, pipelines=4), [8], accelerated=True)
    four = {(way.copies, way.standby) for way in found if way.replicas == 4 and way.redundancy == "lazy"}
    two = {(way.copies, way.standby) for way in found if way.replicas == 2 and way.redundancy == "lazy"}
    assert four == {(2, "device")}
    assert two == {(2, "device"), (3, "device"), (3, "host")}, "the third copy needs a standby"


def test_what_does_not_fit_into_memory_is_no_way() -> None:
    """Each of three stages has 2,000 parameters: 24 kB of state and 8 kB of gradients, and as much for its standby."""

    def left(memory: int) -> set[tuple[str, str]]:
        conditions = Conditions(PROFILE, Cluster(), (Kind(memory_bytes=memory),))
        tried = [way for way in ways(PROFILE, [3], accelerated=True) if way.stages == 3 and way.copies < 3]
        return {(way.redundancy, way.standby) for way in conditions.fitting(tried)}

    assert left(31_999) == set()
    assert left(32_000) == {("off", "device"), *((each, "host") for each in ("lazy", "eager", "auto"))}
    assert len(left(64_000)) == 7


def test_of_several_pipelines_every_number_of_replicas_is_tried() -> None:
    found = ways(replace(PROFILE, pipelines=4), [8])
    shapes = {(way.replicas, way.stages): way.spares for way in found}
    assert shapes == {(1, 6): 2, (2, 4): 0, (4, 2): 0}
    assert {(way.replicas, way.stages) for way in ways(replace(PROFILE, pipelines=2), [3])} == {(1, 3), (1, 2), (2, 1)}


def test_one_machine_has_nobody_to_stand_by() -> None:
    assert {way.redundancy for way in ways(PROFILE, [1])} == {"off"}


CALM = [Change(at=0.0, kind="add", node=f"m{i}", zone="xy"[i % 2], price=1.0) for i in range(4)]


def test_a_market_tells_prices_missing_machines_and_bulks() -> None:
    changes = [
        *CALM,
        Change(at=1800.0, kind="remove", node="m0", zone="x"),
        Change(at=1801.0, kind="remove", node="m1", zone="y"),
        Change(at=2700.0, kind="remove", node="m2", zone="x"),
    ]
    rates = rates_of(changes, 4, 3600.0, 9.0)
    assert rates.dollars_per_hour == pytest.approx(4 * 0.5 + 2 * 0.25 + 0.25, rel=1e-3)
    assert rates.short == pytest.approx((0.5, 0.5, 0.25), rel=1e-3)
    assert rates.bulks(1.0) == [(2, 2), (1, 1)]
    assert rates.bulks(0.5) == [(1, 1)] * 3


def guessed(way: Way, changes: list[Change], profile: Profile = PROFILE, zones: tuple[str, ...] = ()) -> list[Guess]:
    conditions = Conditions(profile, Cluster(), (Kind(prices=(1.0,)),), zones)
    return with_checkpoints(conditions, way, rates_of(changes, way.machines, 3600.0, 1.0))


def test_of_a_calm_market_the_formula_is_what_a_simulated_run_comes_to() -> None:
    way = way_of(4, 4, "lazy")
    (guess,) = guessed(way, CALM)
    row = simulate(Conditions(PROFILE, Cluster(), (Kind(prices=(1.0,)),)), guess.way, CALM, 1e6)
    assert guess.seconds == pytest.approx(row.seconds, rel=0.01)
    assert guess.dollars == pytest.approx(row.cost, rel=0.01)
    assert guess.rollbacks == 0.0


def test_the_more_often_a_run_goes_back_the_closer_its_checkpoints_are() -> None:
    """Young: half as long where they come four times as often."""
    profile = replace(PROFILE, layers=(Layer(0.1, 0.2, 10**9),) * 6, steps=10**6)
    bulk = [Change(at=100.0, kind="remove", node="m0"), Change(at=100.0, kind="remove", node="m1")]
    again = [Change(at=100.0, kind="add", node="m0"), Change(at=100.0, kind="add", node="m1")]
    once = [*CALM, *bulk]
    four = [*CALM, *(replace(c, at=c.at + 800 * i) for i in range(4) for c in (*bulk, *again))]
    every = {
        name: guessed(way_of(4, 4, "lazy"), changes, profile)[0].way.checkpoint_steps
        for name, changes in (("once", once), ("four times", four))
    }
    assert every["once"] == pytest.approx(2 * every["four times"], rel=0.02)


def test_copies_in_several_zones_outlive_a_bulk_in_one() -> None:
    gone = [Change(at=100.0, kind="remove", node=node, zone="x") for node in ("m0", "m2")]
    apart = guessed(way_of(4, 4, "lazy"), [*CALM, *gone], zones=("x", "y"))[0]
    unknown = guessed(way_of(4, 4, "lazy"), [*CALM, *gone])[0]
    assert apart.rollbacks == 0.0
    assert unknown.rollbacks > 0.0


def test_what_a_commit_waits_for_is_charged() -> None:
    """A stage's 100 million parameters take 0.32 s to a standby: two of them more than the last backward hides."""
    profile = replace(PROFILE, layers=(Layer(0.01, 0.02, 100_000_000),) * 4)
    conditions = Conditions(profile, Cluster())
    adds = {
        (copies, standby): at_commit(profile, way, conditions.stages_of(way), conditions.cluster, 0.5)
        for copies, standby in ((2, "device"), (3, "device"), (2, "host"))
        for way in [replace(way_of(4, 4, "lazy", 100), copies=copies, standby=standby)]
    }
    assert adds[2, "device"].copies == pytest.approx(0.32)
    assert adds[3, "device"].copies == pytest.approx(0.64)
    assert adds[2, "host"].host == pytest.approx(0.058)
    assert adds[2, "device"].checkpoints == pytest.approx(1.2e9 / 2.5e9 / 100)
    assert adds[2, "device"].audits == 0.0, "bubbles hold them"


def test_few_ways_are_simulated_and_those_next_to_the_best_are_among_them() -> None:
    kinds = tuple(Kind(name=name, speed=speed, prices=(1.0,)) for name, speed in (("slow", 0.5), ("quick", 1.0)))
    conditions = Conditions(replace(PROFILE, pipelines=4), Cluster(), kinds, ("x", "y"))
    tried = ways(conditions.profile, range(2, 9), kinds, ("x", "y"))
    rates = rates_of(CALM, 8, 3600.0, 1.0)
    guesses = [guess for way in tried for guess in with_checkpoints(conditions, way, rates)]
    kept = first_guess.short_list(guesses)
    assert len(kept) < 60 < len(tried) / 5
    assert {way.kind for way in kept} == {"slow", "quick"}
    nearest = first_guess.next_to(kept[0], guesses)
    assert all(len(apart(way, kept[0])) == 1 for way in nearest)
    assert {way.kind for way in nearest} == {"slow", "quick"}


@pytest.mark.parametrize("way", [way_of(4, 4, "off", 50), way_of(8, 2, "auto", 0, 4)])
def test_the_settings_of_a_way_are_a_job_that_can_be_run(way: Way) -> None:
    url = ['checkpoint.url="file:///nowhere"'] if way.checkpoint_steps else []
    job = load_job(EXAMPLE, [*url, "resilience.audit=0.05", *settings_of(way)])
    assert job.pipeline.stages == way.stages
    assert job.resilience.copies_held == way.copies

"""What to rent: the ways that are tried, the one that is named, and files that are none."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from culm.__main__ import main
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job
from culm.simulator.markets.advice import Outlook, best, next_best, outlook, placed, short_list, simulate, why
from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.first_guess import Conditions, Guess
from culm.simulator.markets.job_profile import Cluster, Layer, profile_to_json, read_profile
from culm.simulator.markets.random_market import Zone, shifted, zoned
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change
from culm.simulator.markets.ways import Way, ways
from culm.terminal.market_flags import in_turn
from tests.unit.planned import PROFILE, way_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"


def looks(way: Way, days: float, cost: float, done: float = 1.0) -> Outlook:
    return Outlook(
        way=way,
        done=done,
        samples_per_second=100.0 / days,
        days=days,
        days_range=(days, days * 1.2),
        cost=cost,
        cost_range=(cost, cost),
        rollbacks=0.0,
        rollback_risk=0.0,
        useful=1.0,
        markets=20,
    )


SMALL, LARGE = (
    way_of(3, 3, "lazy", 100),
    way_of(6, 6, "lazy", 100),
)


def test_a_run_of_several_pipelines_begins_with_the_machines_that_are_there() -> None:
    profile = replace(PROFILE, pipelines=4, steps=20)
    at_once = [Change(at=0.0, kind="add", node=f"m{i}") for i in range(8)]
    in_turn = [Change(at=30.0 * (i > 1), kind="add", node=f"m{i}") for i in range(8)]
    way = way_of(8, 2, "lazy", 0, replicas=4)
    four, one = (simulate(Conditions(profile, Cluster()), way, changes, 1e6) for changes in (at_once, in_turn))
    assert four.steps == one.steps == 20
    assert four.throughput > 2 * one.throughput


def test_the_best_is_done_by_the_deadline_and_else_the_best_bargain() -> None:
    found = [looks(SMALL, 4.0, 10.0), looks(LARGE, 2.0, 15.0)]
    assert best(found) is found[1]
    assert best(found, deadline_days=10.0) is found[0]
    assert best(found, deadline_days=3.0) is found[1]
    assert best(found, deadline_days=2.1) is None, "one run in ten takes longer"
    assert best([looks(SMALL, 4.0, 10.0, done=0.9)]) is None


def test_reasons_compare_with_the_nearest_other_ways() -> None:
    chosen = looks(LARGE, 2.0, 15.0)
    off = looks(way_of(6, 6, "off", 100), 3.0, 18.0)
    told = why(chosen, [chosen, off, looks(SMALL, 4.0, 10.0)])
    assert told == [
        "3 machines: +100.0% time, -33.3% cost, 0.0 rollbacks a run",
        "redundancy off: +50.0% time, +20.0% cost, 0.0 rollbacks a run",
    ]


def test_a_shape_is_compared_with_those_of_fewer_and_of_more_stages() -> None:
    chosen = looks(way_of(8, 2, "lazy", 100, replicas=4), 2.0, 16.0)
    others = [
        looks(way_of(8, stages, "lazy", every, replicas=8 // stages), 4.0, 20.0)
        for stages in (1, 4, 8)
        for every in (90, 9)
    ]
    assert why(chosen, [chosen, *others]) == [
        "8 replicas of 1 stage: +100.0% time, +25.0% cost, 0.0 rollbacks a run",
        "2 replicas of 4 stages: +100.0% time, +25.0% cost, 0.0 rollbacks a run",
        "8 stages, 0 spare(s): +100.0% time, +25.0% cost, 0.0 rollbacks a run",
    ]


def test_the_next_best_differs_in_more_than_its_checkpoints() -> None:
    chosen, other = looks(LARGE, 2.0, 15.0), looks(SMALL, 4.0, 10.0)
    same = looks(replace(LARGE, checkpoint_steps=50), 2.0, 15.1)
    assert next_best([chosen, same, other], chosen) is other
    assert next_best([chosen, same], chosen) is None


def test_after_a_few_markets_the_good_ways_go_on_and_what_the_best_is_compared_with() -> None:
    tried = [way for way in ways(replace(PROFILE, layers=PROFILE.layers * 4), range(2, 20)) if way.copies < 3]
    found = [looks(way, 10.0 / way.stages, 1.0 + way.machines) for way in tried]
    kept = short_list(found)
    assert len(kept) < len(tried) / 3
    chosen = best(found)
    assert chosen is not None
    listed = [x for x in found if x.way in kept]
    assert best(listed) is chosen
    assert why(chosen, listed) == why(chosen, found)


def test_ways_that_end_in_no_market_make_room_for_those_that_do() -> None:
    found = [looks(way_of(n, n, "lazy", 100), 1.0, 1.0, done=0.0) for n in range(2, 30)]
    found.append(looks(way_of(40, 40, "lazy", 100), 9.0, 99.0))
    assert found[-1].way in short_list(found)


def test_of_machines_that_cost_nothing_the_fastest_way_is_the_best() -> None:
    found = [looks(SMALL, 4.0, 0.0), looks(LARGE, 2.0, 0.0)]
    assert best(found) is found[1]
    assert best(found, deadline_days=10.0) is found[1]
    guesses = [Guess(way=x.way, seconds=x.days, dollars=0.0, rollbacks=0.0) for x in found]
    assert min(guesses, key=lambda x: x.worth(None)).way is LARGE


def test_ways_that_are_often_late_make_room_for_those_that_are_not() -> None:
    late = [looks(way_of(n, n, "lazy", 100), 9.0, 1.0) for n in range(2, 30)]  # up to 10.8 days
    sure = looks(way_of(40, 40, "lazy", 100), 8.0, 99.0)
    assert best([*late, sure], deadline_days=10.0) is sure
    assert sure.way in short_list([*late, sure], deadline_days=10.0)


def test_whoever_takes_fewer_machines_than_there_are_has_some_of_each_zone() -> None:
    """With 4 to 8 machines in two zones the plan had all of 4 in the zone that was named first."""
    zones = [Zone(name=name, machines=4, price=1.0, lost_per_hour=0.1) for name in "ba"]
    market = zoned(7, zones, 1e5)
    coming = in_turn(market)
    assert [change.zone for change in coming[:8]] == ["b", "a"] * 4
    assert sorted(map(repr, coming)) == sorted(map(repr, market))
    assert [x for x in coming if x.at > 0.0] == [x for x in market if x.at > 0.0]


def test_a_run_that_does_not_end_counts_as_not_done() -> None:
    never = [Change(at=0.0, kind="add", node="a")]
    row = simulate(Conditions(PROFILE, Cluster()), SMALL, never, 1000.0)
    assert row.steps == 0
    assert outlook(SMALL, [row], PROFILE.steps).done == 0.0
    many = [Change(at=0.0, kind="add", node=f"m{i}") for i in range(3)]
    ended = simulate(Conditions(PROFILE, Cluster()), SMALL, many, 1e6)
    assert outlook(SMALL, [ended, row], PROFILE.steps).done == 0.5


def test_a_trace_can_be_entered_anywhere_and_begins_again_at_its_end() -> None:
    trace = [
        Change(at=0.0, kind="add", node="a"),
        Change(at=10.0, kind="add", node="b"),
        Change(at=20.0, kind="notice", node="a", seconds_left=10.0),
        Change(at=30.0, kind="remove", node="a"),
        Change(at=100.0, kind="add", node="c"),
    ]
    assert [(c.at, c.kind, c.node) for c in shifted(trace, 15.0, 90.0)] == [
        (0.0, "add", "a/0"),
        (0.0, "add", "b/0"),
        (5.0, "notice", "a/0"),
        (15.0, "remove", "a/0"),
        (85.0, "add", "c/0"),
        (85.0, "add", "a/1"),
        (85.0, "remove", "b/0"),
        (85.0, "remove", "c/0"),
    ]


def test_entering_a_trace_anywhere_keeps_machines_apart() -> None:
    trace = zoned(1, [Zone(name="z", machines=4, price=0.9, lost_per_hour=1.0)], 20_000.0)
    for offset in (0.0, 5_000.0, 19_000.0):
        here: set[str] = set()
        for change in shifted(trace, offset, 60_000.0):
            if change.kind == "add":
                assert change.node not in here
                here.add(change.node)
            else:
                here.remove(change.node)


# ---- profiles --------------------------------------------------------------------------------------------------------


def test_a_profile_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(PROFILE))
    assert read_profile(path) == PROFILE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "its beginning: invalid JSON"),
        ('{"name": "x"}', "layers: field required"),
        (profile_to_json(PROFILE).replace("0.01", "-1"), "layers.0.forward: input should be greater than or equal"),
        (profile_to_json(PROFILE).replace('"lead"', '"leed"'), "leed"),
    ],
)
def test_a_bad_profile_is_told_in_a_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        read_profile(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_is_measured_layer_by_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "digits.json"
    assert main(["profile", str(EXAMPLE), "--rounds", "2", "--out", str(path)]) == 0
    profile, job = read_profile(path), load_job(EXAMPLE)
    assert profile.samples_per_step == job.samples_per_step
    assert [layer.parameters for layer in profile.layers[:3]] == [0, 64 * 64 + 64, 2 * 64]
    assert profile.layers[1].activation_bytes == 16 * 64 * 4
    assert all(layer.forward > 0.0 for layer in profile.layers)
    assert "layers, a microbatch takes" in capsys.readouterr().out


def test_a_job_of_several_pipelines_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(EXAMPLE), "--rounds", "1", "--set", "pipeline.pipelines=4"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pipelines"], told["microbatches"], told["samples_per_step"]) == (4, 4, 4 * 4 * 16)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_names_a_way_and_gives_the_same_for_the_same_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(PROFILE))
    words = ["plan", str(EXAMPLE), "--profile", str(path), "--nodes", "2,4", "--seeds", "2", "--hazard", "2"]
    assert main([*words, "--price", "0.91", "--json"]) == 0
    one = capsys.readouterr().out
    assert main([*words, "--machine", "p3.2xlarge", "--json"]) == 0
    assert capsys.readouterr().out.replace('"kind": "p3.2xlarge"', '"kind": ""') == one
    told = json.loads(one)
    assert told["best"] in told["ways"]


def test_a_job_of_several_pipelines_gets_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(PROFILE))
    words = ["plan", str(EXAMPLE), "--profile", str(path), "--nodes", "8", "--seeds", "1", "--hazard", "0"]
    words += ["--price", "1", "--set", "job.steps=1000"]
    found = {}
    for pipelines in (1, 4):
        assert main([*words, "--set", f"pipeline.pipelines={pipelines}", "--json"]) == 0
        found[pipelines] = json.loads(capsys.readouterr().out)["best"]
    assert found[4]["way"]["replicas"] == 4
    assert found[4]["samples_per_second"] > 1.2 * found[1]["samples_per_second"], "four parts of a step go at once"
    assert main([*words, "--set", "pipeline.pipelines=4"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Rent 8: 4 replicas of 2 stages and 0 spare(s)" in told
    assert "a shape is replicas x stages" in told


def test_the_chosen_way_is_laid_out_in_the_markets_zones() -> None:
    """As the coordinator would lay it out: a replica in each zone, over which only parameter gradients cross."""
    layers = (Layer(0.01, 0.02, 1_000_000, 10_000),) * 6
    profile = replace(PROFILE, layers=layers, pipelines=4)
    market = [Change(at=0.0, kind="add", node=f"m{i}", zone="ab"[i % 2]) for i in range(8)]
    way = way_of(6, 3, "lazy", 0, replicas=2)
    assert placed(profile, way, market).zones_in_words(profile, Cluster(per_gb_between_zones=0.02)) == (
        "the copies of every stage are in two zones or more; 2 of 2 replicas lie in one zone each; "
        "between zones a step sends 48.0 MB of parameter gradients, and activations at 0 of 8 boundaries; "
        "that costs 0.00096 $ a step"
    )
    crossing = placed(profile, way_of(3, 3, "lazy", 0), market).zones_in_words(profile, Cluster())
    # Four pipelines of 8 microbatches, 10 kB there and back, over both boundaries.
    assert crossing.endswith("and activations at 8 of 8 boundaries (1.3 MB)")
    assert placed(profile, way, market[:2]).stages == (), "too few machines come"


def test_the_stages_of_the_chosen_way_are_cut_as_the_job_asks() -> None:
    """Half of the parameters lie in the first layer, and most of the time is taken by the others."""
    layers = (Layer(0.001, 0.002, 5_000_000), *(Layer(0.01, 0.02, 1_000_000),) * 5)
    profile = replace(PROFILE, layers=layers, stages=2, most_stages=2)
    market = [Change(at=0.0, kind="add", node=f"m{i}") for i in range(2)]
    told = {
        measured: placed(other, way_of(2, 2, "lazy", 0), market).layers_in_words(other)
        for measured in (False, True)
        for other in [replace(profile, measured=measured)]
    }
    assert told == {False: "layers 0, 1-5, cut by parameters", True: "layers 0-2, 3-5, cut by times"}
    seconds = [
        CulmRun(market, replace(profile, measured=by), Cluster(), Choice()).run().seconds for by in (False, True)
    ]
    assert seconds[1] < 0.8 * seconds[0], "the run is cut in the same way"


def test_zones_and_types_of_machines_may_differ_in_price_and_hazard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(PROFILE))

    def best_way(*more: str) -> tuple[str, list[str]]:
        words = ["plan", str(EXAMPLE), "--profile", str(path), "--nodes", "4", "--seeds", "2", "--json", *more]
        assert main(words) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["next_best"]["cost"] * told["next_best"]["days"] >= told["best"]["cost"] * told["best"]["days"]
        return told["best"]["way"]["kind"], told["best"]["way"]["zones"]

    assert best_way("--prices", "1,3", "--hazard", "0") == ("", ["zone-1"])
    long = ("--set", "job.steps=2000", "--hazard", "0", "--machine", "a,price=1", "--machine")
    assert best_way(*long, "b,price=2,speed=3") == ("b", []), "a third of the time, two thirds of the dollars"
    assert best_way(*long, "b,price=10,speed=3") == ("a", []), "a third of the time, more than three times the dollars"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nodes", "x", "--price", "1", "--hazard", "1"], "--nodes: 'x' is not a number of machines; write 8, 4-8"),
        (["--nodes", "4", "--price", "-1", "--hazard", "1"], "--prices: -1.0 is too small"),
        (["--nodes", "4", "--hazard", "1"], "--prices: no price of a machine is given"),
        (["--nodes", "4", "--prices", "table.toml", "--hazard", "1"], "--prices: 'table.toml' is not a number"),
        (["--nodes", "4", "--prices", "1", "--machine", "p3.2xlarge", "--hazard", "1"], "give one of them"),
        (["--nodes", "4", "--prices", "1,2,3", "--hazard", "1,2"], "--hazard: there are 2 numbers for 3 zones"),
        (["--nodes", "4", "--prices", "1", "--hazard", "often"], "--hazard: 'often' is not a number"),
        (["--nodes", "4", "--prices", "1", "--hazard", "1", "--zones", "0"], "--zones: '0' is too small"),
        (["--nodes", "4", "--machine", "abacus", "--hazard", "1"], "--machine: the spot price of abacus is not known"),
        (["--nodes", "4", "--machine", "a,price=1,sped=2", "--hazard", "1"], "'sped=2' is none of price, speed"),
        (["--nodes", "4", "--machine", "a,price=1,speed=0", "--hazard", "1"], "'0' is not one number above 0"),
        (["--nodes", "4", "--machine", "a,price=x", "--hazard", "1"], "--machine a, price: 'x' is not a number"),
        (["--nodes", "4", "--machine", "price=1", "--hazard", "1"], "'price=1' names no type of machine"),
        (
            ["--nodes", "4", "--machine", "a,price=1", "--machine", "a,price=2", "--hazard", "1"],
            "a type is there twice",
        ),
        (["--nodes", "4", "--machine", "a,price=1/2/3", "--hazard", "1,2"], "there are 2 numbers for 3 zones"),
        (["--nodes", "4", "--price", "1", "--hazard", "1", "--validate", "0"], "--validate: '0' is too small"),
        (["--nodes", "4", "--machine", "a,price=1,memory=0.000001", "--hazard", "1"], "no way fits into the memory"),
        (["--nodes", "4", "--price", "1", "--hazard", "1", "--seeds", "0"], "--seeds: '0' is too small"),
        (["--nodes", "4", "--price", "1", "--trace", "nowhere"], "nowhere: the trace cannot be read"),
    ],
)
def test_bad_words_are_told_in_a_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(PROFILE))
    assert main(["plan", str(EXAMPLE), "--profile", str(path), *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_a_plan_of_a_run_of_years_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(PROFILE))
    words = ["plan", str(EXAMPLE), "--profile", str(path), "--nodes", "4", "--prices", "1", "--hazard", "0.1"]
    command = [sys.executable, "-m", "culm", *words, "--set", "job.steps=10000000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as planning:
        assert planning.stderr is not None
        assert planning.stderr.readline().startswith("simulating ")
        begun = psutil.Process(planning.pid).children(recursive=True)
        planning.terminate()
        assert planning.stderr.read() == "culm plan: interrupted\n"
    assert planning.returncode == 130
    assert psutil.wait_procs(begun, timeout=60.0)[1] == []


INTERRUPTED_AT = """
import os, signal, sys
from multiprocessing import resource_tracker

register, left = resource_tracker.register, int(sys.argv.pop(1))

def interrupted(name, kind):
    global left
    register(name, kind)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGTERM)

resource_tracker.register = interrupted
from culm.__main__ import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("semaphore", [1, 4])
def test_an_interrupt_while_semaphores_are_made_leaks_none(semaphore: int, tmp_path: Path) -> None:
    path, script = tmp_path / "profile.json", tmp_path / "script.py"
    path.write_text(profile_to_json(PROFILE))
    script.write_text(INTERRUPTED_AT)
    words = ["plan", str(EXAMPLE), "--profile", str(path), "--nodes", "4", "--prices", "1", "--hazard", "0.1"]
    ended = subprocess.run([sys.executable, script, str(semaphore), *words], stderr=subprocess.PIPE, text=True)
    assert ended.stderr.splitlines()[1:] == ["culm plan: interrupted"]
    assert ended.returncode == 130

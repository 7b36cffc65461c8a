"""A run that ends early: what decides it, and what is known of it wherever the run goes on from."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from culm.coordinator import checkpoints, stopping_early
from culm.coordinator.commands import Persist, Record, WriteManifest
from culm.coordinator.commits import commit_if_ready
from culm.coordinator.decide import begin
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.origins import of_another_job, origin_of, resumable
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.reports import Saved
from culm.coordinator.state import Ending, Phase, Settings, State
from culm.coordinator.step_numbers import numbers_of
from culm.oracle.plain_evaluation import is_enough
from culm.pipeline.checkpoints import evaluation_file
from culm.pipeline.checkpoints.manifest import (
    File,
    Found,
    Manifest,
    find_checkpoints,
    folder_of,
    manifest_from_json,
    manifest_to_json,
    write_manifest,
)
from culm.pipeline.clip import SKIPPED
from culm.pipeline.commit import Commit
from culm.pipeline.early_stop import NONE_SO_FAR, BestSoFar, EarlyStop, early_stop
from culm.pipeline.errors import JobError
from culm.pipeline.evaluations import BY_LOSS, Best, Evaluations
from culm.pipeline.job import Job, job_to_toml, load_job, parse_job, with_values
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Member, Plan, StagePlan
from culm.pipeline.plan_bounds import commit_problem, plan_problem
from culm.pipeline.plan_codec import commit_from_proto, commit_to_proto, plan_from_proto, plan_to_proto
from culm.pipeline.tally import TallyForm

EXAMPLE = load_job(Path(__file__).parents[2] / "examples" / "digits_mlp.toml", ["job.steps=200"])
METRICS = {"accuracy": "culm.metrics:accuracy"}
SETTINGS = Settings(
    stages=1,
    microbatches=1,
    steps=100,
    evaluations=Evaluations(every=10, samples=1),
    tally=TallyForm(metrics=("accuracy",)),
    best=Best(place=1, most=True),
    worse_allowed=2,
)
STOP = EarlyStop(60, BestSoFar(40, 0.91, 1))
WORDS = "stopped early at step 60: no better accuracy than 0.91 of step 40 in 2 evaluations"


def job_of(**asked: object) -> Job:
    evaluate = {"dataset": EXAMPLE.data.dataset, "every": 10, "samples": 8, "metrics": METRICS, "patience": 2}
    evaluate |= {"best": "accuracy", "best_is": "most"}
    given = {key: value for key, value in {**evaluate, **asked}.items() if value is not None}
    return with_values(EXAMPLE, {f"evaluate.{key}": value for key, value in given.items()})


# ---- the decision ---------------------------------------------------------------------------------------------------


def test_an_equal_one_is_no_better_and_neither_is_what_is_no_number() -> None:
    known = NONE_SO_FAR.after(BY_LOSS, 10, (math.nan,))
    assert known == BestSoFar(0, 0.0, 1), "nothing is the best yet"
    known = known.after(BY_LOSS, 20, (math.inf,))
    assert known == BestSoFar(20, math.inf, 0), "it is better than nothing"
    known = known.after(BY_LOSS, 30, (0.5,)).after(BY_LOSS, 40, (0.5,)).after(BY_LOSS, 50, (math.nan,))
    assert known == BestSoFar(30, 0.5, 2)
    most = Best(place=1, most=True)
    assert known.after(most, 60, (0.1, 0.4)) == BestSoFar(30, 0.5, 3)
    assert known.after(most, 60, (9.0, 0.75)) == BestSoFar(60, 0.75, 0)


def test_it_decides_as_the_plain_loop_does_by_itself() -> None:
    draw, ended = random.Random(1), 0
    for _ in range(300):
        asked = {"best": draw.choice(["loss", "accuracy"]), "best_is": draw.choice(["least", "most"])}
        job, known, found = job_of(**asked, patience=draw.randint(1, 4)), NONE_SO_FAR, dict[int, dict[str, float]]()
        for step in range(10, 100, 10):
            numbers = tuple(draw.choice([0.1, 0.2, 0.3, math.nan, math.inf]) for _ in range(2))
            found[step] = dict(zip(("loss", "accuracy"), numbers, strict=True))
            stop = early_stop(known, job.best, job.worse_allowed, step, numbers)
            assert (stop is not None) == is_enough(job, found), found
            if stop is not None:
                ended += 1
                break
            known = known.after(job.best, step, numbers)
    assert 100 < ended < 300


def test_the_words_say_why() -> None:
    assert STOP.in_words("accuracy") == WORDS
    assert EarlyStop(20).in_words("loss") == "stopped early at step 20: no loss is a number in 1 evaluation"


def plan_of(step: int, **more: Any) -> Plan:
    stages, members = (StagePlan(0, 1, ("n0",)),), {"n0": Member("n0", 1)}
    return Plan(term=1, generation=1, era=0, step=step, stages=stages, members=members, **more)


def at(step: int, last: Commit | None, tallies: tuple[float, ...], norm: float = 1.0) -> State:
    return replace(begin(SETTINGS, 1, 1, None), committed=step, last_commit=last, norms={0: norm}, tallies=tallies)


def test_the_step_that_decides_changes_nothing_whatever_it_has_trained() -> None:
    last = Commit(term=1, era=0, step=59, scale=1.0, loss=0.75, best_so_far=STOP.best_so_far)
    for loss in (2.0, math.nan):
        found = numbers_of(at(60, last, (loss, 1.0, 1.0, 0.5, 1.0)))
        assert (found.scale, found.loss, found.early_stop, found.fault) == (SKIPPED, 0.75, STOP, "")
        assert (found.evaluated, found.measured, found.best_so_far) == ((1.0, 0.5), (), STOP.best_so_far)
    better = numbers_of(at(60, last, (2.0, 1.0, 1.0, 0.92, 1.0)))
    assert (better.scale, better.early_stop, better.best_so_far) == (1.0, None, BestSoFar(60, 0.92, 0))
    between = numbers_of(at(61, replace(last, step=60), (2.0,)))
    assert (between.scale, between.best_so_far) == (1.0, STOP.best_so_far), "nothing was evaluated"


def test_after_the_last_step_a_run_is_done_and_not_ended_early() -> None:
    last = Commit(term=1, era=0, step=99, scale=1.0, loss=0.75, best_so_far=STOP.best_so_far)
    assert numbers_of(at(100, last, (1.0, 1.0, 0.5, 1.0))).early_stop is None


def test_before_the_first_commit_of_an_era_its_origin_tells() -> None:
    origin = Origin(60, "u/step-00000060", "x", STOP.best_so_far)
    state = replace(at(60, None, (2.0, 1.0, 1.0, 0.5, 1.0)), origin=origin)
    assert numbers_of(state).early_stop == STOP
    assert not stopping_early.forgotten(state)


def test_where_nobody_knows_what_was_best_a_run_counts_from_there_on() -> None:
    """Its origin is of a version of Culm before. Without a patience it goes on saying that nobody knows."""
    state = replace(at(60, None, (2.0, 1.0, 1.0, 0.5, 1.0)), origin=Origin(60, "u/step-00000060", "x", None))
    assert numbers_of(state).best_so_far == BestSoFar(60, 0.5, 0)
    endless = replace(state, settings=replace(SETTINGS, worse_allowed=0))
    assert numbers_of(endless).best_so_far is None


def test_nothing_is_committed_by_a_guess() -> None:
    """A step of which nobody knows what was best before it: the era ends, and another one begins where it is known."""
    plan = plan_of(60)
    state = at(60, None, (2.0, 1.0, 1.0, 0.5, 1.0))
    state = replace(state, phase=Phase.RUNNING, plan=plan, facts={"n0": frozenset({0})}, layer_costs=(1.0,))
    state, commands = commit_if_ready(state, 1.0)
    assert (state.phase, state.committed, state.plan) == (Phase.WAITING, 0, None)
    (said,) = [command.text for command in commands if isinstance(command, Record)]
    assert said.startswith("nobody is left who knows which evaluation was the best before step 60; a new era begins")


# ---- where it is kept -----------------------------------------------------------------------------------------------


def test_it_survives_the_store_and_the_wire() -> None:
    origin = Origin(20, "u/step-00000020", "a" * 64, BestSoFar(10, 0.1 + 0.2, 1))
    plan = plan_of(61, origin=origin, early_stop=STOP)
    commit = Commit(term=1, era=0, step=60, scale=0.0, best_so_far=STOP.best_so_far, next_plan=plan)
    assert commit.early_stop == STOP
    assert replace(commit, step=61).early_stop is None
    read = plan_from_proto(plan_to_proto(plan))
    assert (read, read.origin.best_so_far) == (plan, origin.best_so_far)
    assert commit_from_proto(commit_to_proto(commit)) == commit

    state = replace(begin(SETTINGS, 1, 1, None), committed=61, last_commit=commit, origin=origin, checkpoints=(origin,))
    state = replace(state, ending=Ending(early_stop=STOP))
    back = from_document(json.loads(json.dumps(to_document(state))), SETTINGS, 2, 0.0)
    assert (back.last_commit, back.ending.early_stop, back.steps, back.end) == (commit, STOP, 60, 61)
    assert back.origin.best_so_far == back.checkpoints[0].best_so_far == origin.best_so_far
    old = to_document(state) | {"origin": [20, "u", "x"], "checkpoints": []}
    assert from_document(old, SETTINGS, 2, 0.0).origin.best_so_far is None, "of a version before"
    old["origin"] = [0, "", ""]
    assert from_document(old, SETTINGS, 2, 0.0).origin.best_so_far == NONE_SO_FAR
    silent = replace(commit, best_so_far=None, next_plan=replace(plan, origin=replace(origin, best_so_far=None)))
    again = commit_from_proto(commit_to_proto(silent))
    assert again.next_plan is not None
    assert again.best_so_far is again.next_plan.origin.best_so_far is None


def test_what_cannot_be_is_refused_at_the_edge() -> None:
    plan = plan_to_proto(plan_of(61, early_stop=STOP))
    commit = commit_to_proto(Commit(term=1, era=0, step=60, scale=1.0, best_so_far=STOP.best_so_far))
    assert plan_problem(plan, 1, 100, 1) == commit_problem(commit, 1, 100, 1) == ""
    plan.early_stop.step = 61
    assert "ended early at step 61" in plan_problem(plan, 1, 100, 1)
    plan.early_stop.step = 40
    assert "said to be of step 40" in plan_problem(plan, 1, 100, 1)
    for change in ({"step": 61}, {"worse_in_a_row": 62}, {"number": math.nan}):
        commit = commit_to_proto(Commit(term=1, era=0, step=60, scale=1.0, best_so_far=STOP.best_so_far))
        for key, value in change.items():
            setattr(commit.best_so_far, key, value)
        assert "is said to be" in commit_problem(commit, 1, 100, 1)
    assert manifest_from_json(manifest_to_json(manifest_of(job_of())), "m").best_so_far == STOP.best_so_far
    later = manifest_to_json(replace(manifest_of(job_of()), best_so_far=BestSoFar(60, 0.5, 0)))
    with pytest.raises(Exception, match="m is not a manifest: ValueError before step 60 there cannot have been"):
        manifest_from_json(later, "m")


def test_a_checkpoint_tells_what_was_best_before_its_own_evaluation() -> None:
    """Shares of step 60 may come when more is committed: after the step that decided, or after others."""
    files = {0: (File("a", 1, "0" * 64), File("b", 1, "0" * 64))}
    said = Saved(node="n0", incarnation=1, era=0, step=60, files=files, loss=0.25, best_so_far=STOP.best_so_far)
    known = Commit(term=1, era=0, step=60, scale=0.0, loss=0.75, best_so_far=replace(STOP.best_so_far, number=0.92))
    ended = replace(at(61, known, ()), layer_costs=(1.0,), ending=Ending(early_stop=STOP))
    for state, told, expected in (
        (ended, replace(said, loss=math.nan, best_so_far=None), (0.75, known.best_so_far)),
        (replace(ended, last_commit=None), replace(said, best_so_far=None), (0.25, STOP.best_so_far)),
        (replace(at(75, replace(known, step=74), ()), layer_costs=(1.0,)), said, (0.25, STOP.best_so_far)),
    ):
        _, commands = checkpoints.saved(state, told)
        (whole,) = [command for command in commands if isinstance(command, WriteManifest)]
        assert (whole.loss, whole.best_so_far) == expected


def test_what_one_share_tells_stays_where_the_last_one_tells_nothing() -> None:
    """A node that was seeded in a pause wrote the last share: the manifest said that nobody knew what was best."""
    first, second = (
        Saved(node=f"n{layer}", incarnation=1, era=0, step=60, files={layer: (File("a", 1, "0" * 64),)}, loss=math.nan)
        for layer in (0, 1)
    )
    told = replace(first, loss=0.25, best_so_far=STOP.best_so_far)
    led = Commit(term=1, era=0, step=59, scale=1.0, loss=0.25, best_so_far=STOP.best_so_far)
    paused = replace(at(60, None, ()), layer_costs=(1.0, 1.0))
    for state, share in ((paused, told), (replace(paused, last_commit=led), first)):
        state, commands = checkpoints.saved(state, share)
        assert not commands
        gone_on = replace(state, committed=61, last_commit=replace(led, step=60, loss=0.75, best_so_far=NONE_SO_FAR))
        _, commands = checkpoints.saved(gone_on, second)
        (whole,) = [command for command in commands if isinstance(command, WriteManifest)]
        assert (whole.loss, whole.best_so_far) == (0.25, STOP.best_so_far)


def test_it_is_no_other_manifest_where_nobody_knew_what_was_best(tmp_path: Path) -> None:
    folder, manifest = folder_of(str(tmp_path), 60), manifest_of(job_of())
    first = write_manifest(folder, manifest)
    again = write_manifest(folder, replace(manifest, best_so_far=None, loss=math.nan))
    assert (again, again.best_so_far) == (first, STOP.best_so_far)


# ---- resuming -------------------------------------------------------------------------------------------------------


def manifest_of(job: Job, best_so_far: BestSoFar | None = STOP.best_so_far) -> Manifest:
    return Manifest(
        job=job.job.name, step=60, fingerprint="", loss=0.5, job_toml=job_to_toml(job), best_so_far=best_so_far
    )


def found_at(url: Path, manifest: Manifest, accuracy: float | None = 0.9) -> Found:
    write_manifest(folder_of(str(url), 60), manifest)
    if accuracy is not None:
        evaluation_file.write(folder_of(str(url), 60), {"loss": 0.5, "accuracy": accuracy})
    (found,) = find_checkpoints(str(url))
    return found


def resumes(found: Found, job: Job) -> Origin:
    assert found.manifest is not None
    resumable(found, found.manifest, CoordinatorSettings(job=job))
    return origin_of(found, job)


def test_an_ended_run_is_not_resumed_unless_more_is_allowed(tmp_path: Path) -> None:
    found = found_at(tmp_path, manifest_of(job_of()))
    with pytest.raises(JobError) as refused:
        resumes(found, job_of())
    assert str(refused.value).startswith(f"--resume {found.url}: the run has {WORDS}; raise evaluate.patience to 3")
    with pytest.raises(JobError, match=r"raise evaluate\.patience to 3 or more"):
        resumes(found, job_of(patience=1))
    assert resumes(found, job_of(patience=3)).best_so_far == STOP.best_so_far
    assert resumes(found, job_of(patience=2, every=7)).best_so_far == STOP.best_so_far, "it is not evaluated there"
    without = with_values(EXAMPLE, {"job.steps": 200})
    assert resumes(found, without).best_so_far == STOP.best_so_far


def test_one_of_which_nobody_knows_how_good_it_is_is_evaluated_again(tmp_path: Path) -> None:
    assert resumes(found_at(tmp_path, manifest_of(job_of()), None), job_of()).best_so_far == STOP.best_so_far


@pytest.mark.parametrize("asked", [{"best": "loss", "best_is": "least"}, {"samples": 7}, {"best_is": "least"}])
def test_of_another_evaluation_nothing_is_compared(
    asked: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = found_at(tmp_path, manifest_of(job_of()))
    assert resumes(found, job_of(**asked)).best_so_far == NONE_SO_FAR
    assert "evaluate.patience counts from here on" in caplog.text


@pytest.mark.parametrize(
    ("then", "now", "ours"),
    [
        ({}, {}, True),
        ({"patience": 1}, {"patience": 2}, True),
        ({}, {"patience": None}, True),
        ({"patience": 3}, {"patience": 2}, False),
        ({"patience": None}, {}, False),
        ({}, {"every": 5}, False),
        ({}, {"samples": 7}, False),
    ],
)
def test_a_run_does_not_go_on_from_beyond_its_end(then: dict[str, Any], now: dict[str, Any], ours: bool) -> None:
    """Of checkpoints that are left where its own go, those count to which it comes itself."""
    said = of_another_job(manifest_of(job_of(**then)), job_of(**now), frozenset())
    assert (said == "") == ours


def test_one_that_does_not_say_what_was_best_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = found_at(tmp_path, manifest_of(job_of(), None))
    assert resumes(found, job_of()).best_so_far == NONE_SO_FAR
    assert "evaluate.patience counts from here on" in caplog.text


# ---- the job --------------------------------------------------------------------------------------------------------


def test_a_job_says_after_how_many() -> None:
    assert (job_of().worse_allowed, job_of(patience=7).worse_allowed, EXAMPLE.worse_allowed) == (2, 7, 0)
    assert parse_job(job_to_toml(job_of())) == job_of()
    settings = CoordinatorSettings(job=job_of()).decisions()
    assert (settings.worse_allowed, settings.best, settings.keeps_best) == (2, Best(place=1, most=True), False)
    for wrong, said in (
        (0, "0 is too small; set it to 1 or more"),
        (-3, "set it to 1 or more"),
        (1.5, "valid integer"),
    ):
        with pytest.raises(JobError, match=said) as refused:
            job_of(patience=wrong)
        assert "evaluate.patience" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_persisted_before_the_commit_is_told() -> None:
    """As every commit is: nobody obeys a plan that the next coordinator could not know of."""
    last = Commit(term=1, era=0, step=59, scale=1.0, loss=0.75, best_so_far=STOP.best_so_far)
    plan = plan_of(0)
    state = replace(at(60, last, (2.0, 1.0, 1.0, 0.5, 1.0)), phase=Phase.RUNNING, plan=plan)
    state = replace(state, facts={"n0": frozenset({0})}, layer_costs=(1.0,))
    state, (persist, commit, *_) = commit_if_ready(state, 1.0)
    assert isinstance(persist, Persist)
    assert isinstance(commit, Commit)
    assert (commit.early_stop, state.phase, state.detail) == (STOP, Phase.DONE, WORDS)

"""Checkpoints of a run that neither the store nor any node knows of: rules 14 and 15 where a whole memory is lost."""

import asyncio
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from culm.commands.checkpoint import chosen
from culm.commands.run import refuse_to_write_over
from culm.coordinator.commands import Command, Dismiss, LeadAnew, Publish
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges import origins
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.reports import Available, CheckpointsFound, Joined, Report, Tick
from culm.coordinator.rolling_back import roll_back
from culm.coordinator.state import Phase, Settings, State
from culm.pipeline.checkpoints.manifest import MANIFEST, File, Found, Manifest, folder_of, write_manifest
from culm.pipeline.errors import JobError
from culm.pipeline.identity import Identity
from culm.pipeline.job import job_to_toml, load_job
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
SETTINGS = Settings(stages=2, microbatches=2, steps=90)
COSTS = (1.0, 1.0, 1.0)
CODE = Identity({"code": "a" * 64})
PATIENCE = SETTINGS.patience.seconds


def settings_for(url: Path | str, *overrides: str, resume: str = "") -> CoordinatorSettings:
    job = load_job(EXAMPLE, [f"checkpoint.url={url}", "checkpoint.every=10", *overrides])
    return CoordinatorSettings(job=job, new_run=False, resume=resume)


def leave(settings: CoordinatorSettings, step: int, identity: Identity = CODE) -> Origin:
    """A whole checkpoint as a run of these settings leaves it, as far as its manifest tells."""
    job = settings.job
    assert job.checkpoint is not None
    files = {0: (File("a", 1, "0" * 64), File("b", 1, "0" * 64))}
    manifest = Manifest(
        job=job.job.name, step=step, fingerprint="", loss=0.5, files=files, identity=identity, job_toml=job_to_toml(job)
    )
    return write_manifest(folder_of(job.checkpoint.url, step), manifest)


def test_what_becomes_of_newer_ones_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who goes back on purpose loses none of them unawares."""
    settings = settings_for(tmp_path)
    for step in (10, 20, 40):
        leave(settings, step)
    older = f"{tmp_path}/step-00000010"
    said = origins.newer_in_words(settings.job, older)
    assert "steps 20, 40 are newer than step 10, from which the run goes on" in said
    assert "each stays until this run comes to its step, which writes over it" in said
    for url in (str(tmp_path), f"{tmp_path}/step-00000040", f"{tmp_path}/elsewhere/step-00000010"):
        assert origins.newer_in_words(settings.job, url) == ""
    with pytest.raises(JobError, match="this run would write over it; add --new-run, which goes on from"):
        refuse_to_write_over(settings.job, older, new_run=False)
    refuse_to_write_over(settings.job, older, new_run=True)
    assert said in capsys.readouterr().err


def steps(found: list[Found]) -> list[int]:
    return [each.step for each in found]


def leave_two_runs(url: Path, first_is_older: bool) -> tuple[CoordinatorSettings, CoordinatorSettings]:
    """One of 40 steps, and another one of 25 with another learning rate."""
    first, second = settings_for(url), settings_for(url, "train.optimizer_args.lr=0.5")
    left = [(leave(first, 20), 0.0), (leave(first, 40), 0.0), (leave(second, 25), 60.0 if first_is_older else -60.0)]
    for origin, later in left:
        at = 1.7e9 + later
        os.utime(Path(origin.folder.removeprefix("file://")) / MANIFEST, (at, at))
    return first, second


def test_of_two_runs_at_one_url_the_one_that_is_meant_is_to_be_named(tmp_path: Path) -> None:
    """The newest step was taken, with the weights of the run that had been given up, and nothing was said."""
    leave_two_runs(tmp_path, first_is_older=True)
    what = "step 25 was written after that of step 40, by another run; say which one is meant"
    with pytest.raises(JobError, match=f"{what}: --resume {tmp_path}/step-00000025 or --resume {tmp_path}/step"):
        origins.to_resume(str(tmp_path))
    with pytest.raises(JobError, match=f"{what}: --step 25 or --step 40"):
        chosen(str(tmp_path), None)
    assert chosen(str(tmp_path), 25).step == 25
    assert steps(origins.to_resume(f"{tmp_path}/step-00000025")) == [25]


def test_a_run_that_goes_on_with_something_changed_is_newer_in_both_ways(tmp_path: Path) -> None:
    leave_two_runs(tmp_path, first_is_older=False)
    assert chosen(str(tmp_path), None).step == 40
    assert steps(origins.to_resume(str(tmp_path))) == [20, 40]


def test_who_begins_anew_hears_what_stays_of_a_run_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_for(tmp_path)
    refuse_to_write_over(settings.job, "", new_run=True)
    assert capsys.readouterr().err == ""
    leave(settings, 20)
    refuse_to_write_over(settings.job, "", new_run=True)
    assert capsys.readouterr().err.endswith(
        "step 20 is of a run before: each stays until this run comes to its step, which writes over it\n"
    )


def test_those_of_this_very_job_count_the_oldest_first(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "job.steps=50")
    for step in (20, 40, 10, 60):
        leave(settings, step)
    (tmp_path / "step-00000045").mkdir()
    assert steps(origins.left_behind(settings)) == [10, 20, 40], "60 is beyond the end, and 45 never became whole"


@pytest.mark.parametrize("other", ["job.name=other", "job.seed=77", "train.optimizer_args.lr=0.5"])
def test_another_job_s_are_no_origin_and_that_is_said(
    tmp_path: Path, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    leave(settings_for(tmp_path, other), 40)
    with caplog.at_level(logging.WARNING):
        assert origins.left_behind(settings_for(tmp_path)) == []
    assert "step-00000040 is not this run's, so it is left out and will be written over" in caplog.text


def test_a_resumed_run_may_know_more_of_its_bits_in_its_later_checkpoints(tmp_path: Path) -> None:
    """Such as samples, where the first nodes could load none."""
    settings = settings_for(tmp_path)
    leave(settings, 5, Identity({"code": "a" * 64}, ("weight 3",)))
    leave(settings, 10, Identity({"code": "b" * 64}))
    leave(settings, 20, CODE)
    leave(settings, 30, Identity({**CODE.parts, "samples": "64 samples, 1"}))
    assert steps(origins.to_resume(str(tmp_path))) == [20, 30]


@pytest.mark.parametrize("last", ["step-00000025", "step-abc"])
def test_a_step_that_is_not_there_is_refused_with_those_that_are(
    last: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(tmp_path)
    for step in (20, 30):
        leave(settings, step)
    url = f"{tmp_path}/{last}"
    with pytest.raises(JobError, match=r"nothing is there; whole ones are of step 30, 20: name one, as in .*00000030$"):
        origins.refuse_nothing(url, origins.to_resume(url))
    assert caplog.text == ""


def test_those_that_other_code_made_do_not_follow_the_newest(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    leave(settings, 10, Identity({"code": "b" * 64}))
    leave(settings, 20)
    assert steps(origins.left_behind(settings)) == [20]


def test_what_was_written_last_decides_whose_they_are(tmp_path: Path) -> None:
    """A run that was begun anew has come to step 20, and another one's checkpoint of step 40 still lies there."""
    settings = settings_for(tmp_path)
    leave(settings, 40, Identity({"code": "b" * 64}))
    os.utime(tmp_path / "step-00000040" / "manifest.json", (1, 1))
    leave(settings, 20)
    assert steps(origins.left_behind(settings)) == [20]


def test_other_lengths_stages_and_places_are_no_other_job(tmp_path: Path) -> None:
    leave(settings_for(tmp_path, "job.steps=50"), 40)
    now = settings_for(f"file://{tmp_path}", "job.steps=70", "pipeline.stages=3")
    assert steps(origins.left_behind(now)) == [40]


def going_on(step: int = 40, state: State | None = None) -> State:
    manifest = Manifest(job="job", step=step, fingerprint="", loss=0.5, files={}, identity=CODE)
    ours = [Found(step=s, url=f"u/step-{s:08d}", manifest=manifest, sha256=f"{s}") for s in (20, step)]
    return origins.going_on(
        state if state is not None else begin(SETTINGS, 1, 1, 0.0), ours, settings_for("u").job, frozenset()
    )


def test_one_that_is_resumed_from_a_newer_one_stays_as_it_is() -> None:
    resumed = replace(begin(SETTINGS, 1, 1, 0.0), committed=60, origin=Origin(60, "v", "x"), resumed=True)
    assert going_on(40, resumed) == resumed
    assert going_on(80, resumed).origin == Origin(80, "u/step-00000080", "80")


def after(state: State, *reports: Report, now: float = 0.0) -> tuple[State, list[Command]]:
    commands: list[Command] = []
    for report in reports:
        state, more = advance(state, report, now)
        validate(state)
        commands.extend(more)
    return state, commands


def arrival(node: str, plan: Plan | None = None, identity: Identity = CODE) -> tuple[Report, Report]:
    layers = frozenset(range(3)) if plan is not None else frozenset()
    available = Available(
        node=node,
        incarnation=1,
        layer_costs=COSTS,
        era=plan.era if plan else 0,
        version=plan.step if plan else 0,
        holds_state=plan is not None,
        plan=plan,
        layers=layers,
        identity=identity,
    )
    return Joined(node=node, incarnation=1, address=f"{node}:1"), available


def test_nodes_that_hold_nothing_go_on_from_the_newest_once_those_that_may_hold_more_had_their_time() -> None:
    state, commands = after(going_on(), *arrival("n0"), *arrival("n1"), now=PATIENCE - 0.1)
    assert not any(isinstance(c, Publish) for c in commands), "another one may come that holds state"
    state, commands = after(state, Tick(), now=PATIENCE + 0.1)
    (plan,) = (c.plan for c in commands if isinstance(c, Publish))
    assert (plan.step, plan.origin) == (40, Origin(40, "u/step-00000040", "40"))
    assert state.committed == 40


def test_who_waits_for_nodes_says_from_where_the_run_goes_on() -> None:
    state, _ = after(going_on(), Tick(), now=PATIENCE + 1.0)
    assert "0 of 2 are there; the run goes on from step 40, which is in the checkpoint u/step-00000040" in state.detail
    state, _ = after(going_on(90), Tick(), now=PATIENCE + 1.0)
    assert "0 of 2 are there; all 90 steps are in the checkpoint u/step-00000090" in state.detail


def test_a_run_whose_last_checkpoint_was_left_is_done_when_its_nodes_have_read_it() -> None:
    state, _ = after(going_on(90), *arrival("n0"), *arrival("n1"), now=PATIENCE - 0.1)
    state, _ = after(state, Tick(), now=PATIENCE + 0.1)
    assert (state.phase, state.committed) == (Phase.DONE, 90)


@pytest.mark.parametrize(("identity", "origin"), [(CODE, 40), (Identity({"code": "b" * 64}), 0)])
def test_a_node_of_the_run_counts_more_and_the_checkpoints_stay_for_eras_to_come(
    identity: Identity, origin: int
) -> None:
    led, _ = after(begin(SETTINGS, 1, 1), *arrival("n0", None, identity), *arrival("n1", None, identity))
    assert led.plan is not None
    plan = replace(led.plan, step=7)
    state, _ = after(going_on(state=begin(SETTINGS, 2, 2, 0.0)), *arrival("n0", plan, identity))
    state, _ = after(state, *arrival("n1", plan, identity))
    assert (state.committed, state.origin, state.plan is not None) == (7, Origin(), True)
    assert set(state.nodes) == {"n0", "n1"}, "none is refused for what another run left"
    state, _ = roll_back(state, "both copies of a stage are lost")
    assert state.origin.step == origin


def test_a_newcomer_of_other_code_refuses_no_node_of_the_run() -> None:
    """Redis was emptied. It came first, its code became the run's, and the holders were sent away with all weights."""
    led, _ = after(begin(SETTINGS, 1, 1), *arrival("n0"), *arrival("n1"))
    assert led.plan is not None
    plan, other = replace(led.plan, step=7), Identity({"code": "b" * 64})
    state, _ = after(begin(SETTINGS, 2, 2, 0.0), *arrival("n9", None, other), *arrival("n0", plan))
    state, _ = after(state, *arrival("n1", plan))
    state, commands = after(state, arrival("n9", None, other)[1])
    assert (state.committed, set(state.nodes)) == (7, {"n0", "n1"})
    (refused,) = (c for c in commands if isinstance(c, Dismiss))
    assert "code" in refused.why


def test_a_resumed_run_whose_checkpoint_is_away_while_nodes_know_more_stays_a_resumed_one(tmp_path: Path) -> None:
    """Redis is emptied, and a node knows a higher term. If no holder comes back the run must not begin at step 0."""

    async def lead() -> State:
        leader = Leader(settings_for(tmp_path / "own", resume=f"{tmp_path}/gone"), MemoryStore())
        leader.outranked = LeadAnew(5, "a node has seen a higher term")
        await leader.lead()
        return leader.state

    state = asyncio.run(lead())
    assert (state.resumed, state.origin) == (True, Origin())
    now = time.monotonic() + state.settings.patience.seconds + 1.0
    state, _ = after(state, Tick(), *arrival("n0"), *arrival("n1"), CheckpointsFound(), now=now)
    assert state.phase is Phase.FAILED

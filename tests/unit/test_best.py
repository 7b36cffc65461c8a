"""Which evaluated checkpoint is the best one, and stays."""

import asyncio
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from culm.commands.checkpoint import chosen
from culm.coordinator import best, checkpoints
from culm.coordinator.commands import Command, Retain, WriteEvaluation
from culm.coordinator.decide import begin
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.reports import Checkpointed
from culm.coordinator.state import Search, Settings, State
from culm.pipeline.checkpoints import evaluation_file
from culm.pipeline.checkpoints.manifest import MANIFEST, File, Manifest, find_checkpoints, folder_of, write_manifest
from culm.pipeline.early_stop import NONE_SO_FAR, BestSoFar
from culm.pipeline.errors import JobError
from culm.pipeline.evaluations import Best
from culm.pipeline.job import Job, job_to_toml, load_job, with_values
from culm.pipeline.origin import Origin

EXAMPLE = load_job(Path(__file__).parents[2] / "examples" / "digits_mlp.toml")
SETTINGS = Settings(stages=1, microbatches=1, steps=100, checkpoint_url="u", checkpoint_every=10, checkpoints_kept=1)


def test_of_equals_the_first_and_of_what_is_no_number_none() -> None:
    found = {10: (0.5, 0.1), 20: (0.25, 0.3), 30: (0.25, 0.3), 40: (math.nan, math.nan), 50: (0.75, math.inf)}
    assert Best().of(found) == 20
    assert Best(place=1, most=True).of(found) == 50
    assert Best().of({40: (math.nan,)}) is None
    assert Best(place=1).of({10: (0.5,)}) is None, "the metric is a new one"


def beginning(keeps: Best | None) -> State:
    settings = replace(SETTINGS, keeps_best=keeps is not None, best=keeps or Best())
    state = begin(settings, 1, 1, None)
    return replace(state, committed=100, storage=replace(state.storage, search=Search.OVER))


def played(keeps: Best | None) -> tuple[State, list[Command]]:
    """Checkpoints of steps 10 to 50, one of which is whole before its evaluation is known."""
    state, said = beginning(keeps), list[Command]()
    for step, loss in ((10, 0.5), (20, 0.25), (30, 0.4), (40, 0.3), (50, 0.6)):
        if step != 40:
            state = best.noted(state, {step: (loss,)})
            said += best.written(state, step)
        state, commands = checkpoints.checkpointed(state, Checkpointed(Origin(step, folder_of("u", step), str(step))))
        said += commands
        if step == 40:
            state = best.noted(state, {step: (loss,)})
            said += best.written(state, step)
    return state, said


def test_the_best_one_stays_beside_the_newest() -> None:
    state, said = played(Best())
    assert [c.step for c in state.checkpoints] == [20, 50]
    assert [sorted(c.kept) for c in said if isinstance(c, Retain)] == [[10], [20], [20, 30], [20, 40], [20, 50]]
    assert [c.folder for c in said if isinstance(c, WriteEvaluation)] == [
        folder_of("u", s) for s in (10, 20, 30, 40, 50)
    ]
    assert [c.step for c in played(None)[0].checkpoints] == [50]
    assert [c.step for c in played(Best(most=True))[0].checkpoints] == [50]


def test_a_late_checkpoint_finds_its_evaluation_and_memory_stays_bounded() -> None:
    state = beginning(Best())
    for step in range(1, 1000):
        state = best.noted(state, {step: (float(step),)})
    assert len(state.evaluated) == best.KEPT


def test_the_file_goes_with_the_checkpoint_that_it_was_of(tmp_path: Path) -> None:
    url = str(tmp_path)
    folder = folder_of(url, 10)
    manifest = Manifest(job="j", step=10, fingerprint="f", loss=0.5, files={})
    write_manifest(folder, manifest)
    evaluation_file.write(folder, {"loss": 0.1, "accuracy": math.nan})
    (found,) = find_checkpoints(url)
    assert found.evaluated["loss"] == 0.1
    assert evaluation_file.finite(found.evaluated) == {"loss": 0.1, "accuracy": None}
    write_manifest(folder, replace(manifest, fingerprint="of another run"))
    assert find_checkpoints(url)[0].evaluated == {}
    (tmp_path / "step-00000010" / evaluation_file.FILE).write_text("[1]")
    assert find_checkpoints(url)[0].evaluated == {}


# ---- a run that goes on ---------------------------------------------------------------------------------------------


def job_at(url: Path, **evaluate: object) -> Job:
    asked = {"dataset": EXAMPLE.data.dataset, "every": 10, "samples": 8, "keep_best": True, **evaluate}
    values = {f"evaluate.{key}": value for key, value in asked.items()}
    return with_values(EXAMPLE, {**values, "checkpoint.url": str(url), "checkpoint.every": 10, "checkpoint.keep": 1})


def leave(job: Job, step: int, loss: float, known: BestSoFar = NONE_SO_FAR) -> Origin:
    """A whole checkpoint and how good it is. ``known``: what was best before it."""
    assert job.checkpoint is not None
    files = {0: (File("a", 1, "0" * 64), File("b", 1, "0" * 64))}
    of_job = Manifest(job=job.job.name, step=step, fingerprint="", loss=0.5, job_toml=job_to_toml(job))
    folder = folder_of(job.checkpoint.url, step)
    origin = write_manifest(folder, replace(of_job, files=files, best_so_far=known))
    evaluation_file.write(folder, {"loss": loss})
    return origin


def resumed(job: Job, url: str) -> State:
    leader = Leader(CoordinatorSettings(job=job, resume=url, new_run=True), MemoryStore())
    asyncio.run(leader.lead())
    return leader.state


def kept_beside(state: State, job: Job, step: int) -> list[int]:
    """What the run's next checkpoint leaves on record."""
    state = replace(state, committed=step + 1, storage=replace(state.storage, search=Search.OVER))
    whole, _ = checkpoints.checkpointed(state, Checkpointed(leave(job, step, 0.5)))
    return [checkpoint.step for checkpoint in whole.checkpoints]


def test_a_run_that_goes_on_from_one_step_keeps_the_best_before_it(tmp_path: Path) -> None:
    """Its first checkpoint deleted it, though patience still counted from it."""
    job, best_one = job_at(tmp_path), BestSoFar(30, 0.1, 1)
    leave(job, 30, 0.1)
    leave(job, 40, 0.4, BestSoFar(30, 0.1))
    leave(job, 50, 0.5, best_one)
    state = resumed(job, f"{tmp_path}/step-00000050")
    assert (state.committed, state.origin.best_so_far) == (50, best_one)
    assert kept_beside(state, job, 60) == [30, 60]


def test_one_with_more_steps_keeps_it_when_it_is_resumed_once_more(tmp_path: Path) -> None:
    job = job_at(tmp_path)
    leave(job, 30, 0.1)
    longer = with_values(job, {"job.steps": job.job.steps + 100})
    leave(longer, 50, 0.5, BestSoFar(30, 0.1, 1))
    assert [c.step for c in resumed(longer, str(tmp_path)).checkpoints] == [30, 50]
    assert chosen(str(tmp_path), None, best=True).step == 30


def test_another_run_s_checkpoint_of_that_step_is_not_the_best_one(tmp_path: Path) -> None:
    job = job_at(tmp_path)
    leave(with_values(job, {"job.seed": 7}), 30, 0.05)
    leave(job, 50, 0.5, BestSoFar(30, 0.1, 1))
    assert [c.step for c in resumed(job, f"{tmp_path}/step-00000050").checkpoints] == [50]
    assert chosen(str(tmp_path), None, best=True).step == 50


def test_of_another_evaluation_no_number_is_compared(tmp_path: Path) -> None:
    leave(job_at(tmp_path), 30, 0.1)
    leave(job_at(tmp_path), 50, 0.5, BestSoFar(30, 0.1, 1))
    harder = job_at(tmp_path, samples=16)
    state = resumed(harder, str(tmp_path))
    assert state.evaluated == {}
    state = best.noted(state, {60: (0.8,), 70: (0.9,)})
    leave(harder, 60, 0.8)
    leave(harder, 70, 0.9, BestSoFar(60, 0.8))
    assert chosen(str(tmp_path), None, best=True).step == 60


def test_of_two_runs_the_one_that_is_meant_is_to_be_named(tmp_path: Path) -> None:
    """As for the newest one."""
    job = job_at(tmp_path)
    leave(job, 60, 0.4)
    leave(with_values(job, {"job.seed": 7}), 50, 0.5)
    os.utime(tmp_path / "step-00000060" / MANIFEST, (1, 1))
    with pytest.raises(JobError, match="by another run; say which one is meant: --step 50 or --step 60"):
        chosen(str(tmp_path), None, best=True)


def test_a_job_that_cannot_keep_it_is_refused() -> None:
    asked = {"evaluate.dataset": EXAMPLE.data.dataset, "evaluate.every": 15, "evaluate.samples": 8}
    for more, said in (
        ({"evaluate.keep_best": True}, r"there is no \[checkpoint\]"),
        ({"evaluate.keep_best": True, "checkpoint.url": "u", "checkpoint.every": 10}, "a multiple of checkpoint.every"),
        ({"evaluate.best": "accuracy"}, "which nothing is called"),
    ):
        with pytest.raises(JobError, match=said):
            with_values(EXAMPLE, {**asked, **more})
    job = with_values(EXAMPLE, {**asked, "evaluate.metrics": {"a": "m:a", "b": "m:b"}, "evaluate.best": "b"})
    assert job.best == Best(place=2)

"""Which evaluated checkpoint is the best one, and stays."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from culm.coordinator import best, checkpoints
from culm.coordinator.commands import Command, Retain, WriteEvaluation
from culm.coordinator.decide import begin
from culm.coordinator.reports import Checkpointed
from culm.coordinator.state import Search, Settings, State
from culm.pipeline.checkpoints import evaluation_file
from culm.pipeline.checkpoints.manifest import Manifest, find_checkpoints, folder_of, write_manifest
from culm.pipeline.errors import JobError
from culm.pipeline.evaluations import Best
from culm.pipeline.job import load_job, with_values
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

"""What ``culm run`` says before it starts anything, and at its end."""

from pathlib import Path

import pytest
import torch

from culm.commands.run import _look_again, _write, check_files, try_out
from culm.local.cluster import LocalCluster
from culm.pipeline.checkpoints.manifest import File, Manifest, folder_of, write_manifest
from culm.pipeline.errors import JobError
from culm.pipeline.job import job_to_toml, load_job, with_values
from culm.terminal.outcome import Outcome

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
LAYERS = [(0, {"weight": torch.ones(2)})]


def test_weights_that_cannot_be_written_are_told_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk was full: nobody said that a whole checkpoint has the same weights."""
    assert not _write(str(tmp_path / "gone" / "w.safetensors"), Outcome(layers=LAYERS, checkpoint="ck/step-00000060"))
    said = capsys.readouterr().err
    assert "the weights cannot be written" in said
    assert said.endswith("; culm checkpoint export ck/step-00000060 --out FILE writes them elsewhere\n")
    assert _write(str(tmp_path / "w.safetensors"), Outcome(layers=LAYERS))


def test_a_checkpoint_that_became_whole_at_the_very_end_is_the_newest(tmp_path: Path) -> None:
    """A run named the one before, from which it could not be resumed any more."""
    job = with_values(load_job(EXAMPLE), {"checkpoint.url": str(tmp_path), "checkpoint.every": 10})
    files = {0: (File("a", 1, "0" * 64), File("b", 1, "0" * 64))}
    for step in (70, 80):
        written = Manifest(
            job=job.job.name, step=step, fingerprint="", loss=0.5, files=files, job_toml=job_to_toml(job)
        )
        write_manifest(folder_of(str(tmp_path), step), written)
    (tmp_path / "step-00000090").mkdir()  # not whole
    outcome = Outcome(checkpoint=folder_of(str(tmp_path), 70))
    _look_again(outcome, job, new_run=True)
    assert outcome.checkpoint == folder_of(str(tmp_path), 70), "newer ones may be of the run before"
    _look_again(outcome, job, new_run=False)
    assert outcome.checkpoint == folder_of(str(tmp_path), 80)
    resumed = Outcome(first_step=80)
    _look_again(resumed, job, new_run=False)
    assert resumed.checkpoint == "", "it has written none"


def test_logs_that_cannot_be_written_are_told_of_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file in its place")
    with pytest.raises(JobError, match=r"/runs/digits-mlp-.*: the run's logs cannot be written there: .*start from a"):
        LocalCluster(load_job(EXAMPLE), None, 0).__enter__()


def test_a_resume_with_options_that_want_other_state_is_refused_before_anything_starts(tmp_path: Path) -> None:
    then = with_values(load_job(EXAMPLE), {"train.optimizer": "torch.optim:Adam", "train.optimizer_args": {"lr": 0.1}})
    files = {0: (File("a", 1, "0" * 64), File("b", 1, "0" * 64))}
    manifest = Manifest(job=then.job.name, step=1, fingerprint="", loss=0.5, files=files, job_toml=job_to_toml(then))
    write_manifest(folder_of(str(tmp_path), 1), manifest)
    now = with_values(then, {"train.optimizer_args": {"lr": 0.1, "amsgrad": True}})
    found = check_files(now, str(tmp_path), "train", new_run=False)
    assert (found.step, found.job) == (1, then)
    with pytest.raises(JobError, match=r"the state of the checkpoint raised KeyError: 'max_exp_avg_sq'.*; set amsgrad"):
        try_out(now, here=False, then=found.job)
    try_out(now, here=False)

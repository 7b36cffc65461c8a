"""What ``culm run`` says before it starts anything, and at its end."""

from pathlib import Path

import pytest
import torch

from culm.commands.run import _write, check_files, try_out
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

"""Trials of a job leave the checkpoints at its own URL alone: those are of runs that count."""

from pathlib import Path

import pytest

from culm.__main__ import main

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "digits_mlp.toml")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("verify JOB --set job.steps=4 --shapes 1x1", id="verify"),
        pytest.param("replay JOB --trace trace.csv --speed 100 --hours 0.05 --machines 3", id="replay"),
    ],
)
def test_a_trial_writes_no_checkpoint_at_the_jobs_url(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("0,add,a\n0,add,b\n0,add,c\n170000,remove,a\n")
    kept = tmp_path / "ck" / "step-00000001" / "mine"  # retention deletes what is older than the newest checkpoints
    kept.parent.mkdir(parents=True)
    kept.touch()
    sets = ["--set", "checkpoint.url=ck", "--set", "checkpoint.every=2", "--set", "checkpoint.keep=1"]
    assert main([EXAMPLE if word == "JOB" else word for word in words.split()] + sets) == 0
    assert sorted((tmp_path / "ck").rglob("*")) == [kept.parent, kept]

"""``culm run`` and ``culm up`` write over whole checkpoints only where the user says so."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from culm.pipeline.checkpoints.manifest import File, Manifest, folder_of, write_manifest
from tests.hostile.commands import as_process, environment, in_process

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "digits_mlp.toml")
SECTION = ("--set", "checkpoint.url=ck", "--set", "checkpoint.every=2")


def leave(folder: Path, step: int) -> None:
    """A whole checkpoint of another job, as far as its manifest tells."""
    files = {0: (File("a", 1, "0" * 64), File("b", 1, "0" * 64))}
    manifest = Manifest(job="other", step=step, fingerprint="", loss=0.5, files=files)
    write_manifest(folder_of(str(folder), step), manifest)


@pytest.mark.parametrize("more", [pytest.param([], id="anew"), pytest.param(["--resume", "elsewhere"], id="resumed")])
@pytest.mark.parametrize("command", ["run", "up"])
def test_a_run_that_would_write_over_a_whole_checkpoint_does_not_begin(
    command: str, more: list[str], tmp_path: Path
) -> None:
    leave(tmp_path / "ck", 40)
    leave(tmp_path / "elsewhere", 20)
    line = in_process(command, EXAMPLE, *SECTION, *more, folder=tmp_path, CULM_HOME=str(tmp_path / "home")).line
    assert f"culm {command}: checkpoint url ck: a whole checkpoint of step 40 lies there" in line
    assert "--resume ck" in line
    assert "--new-run" in line
    assert {path.name for path in tmp_path.iterdir()} == {"ck", "elsewhere"}, "nothing has begun"


def test_one_url_in_two_spellings_is_one(tmp_path: Path) -> None:
    """Nothing is left to train, so that is what is said, and not that the run would write over the checkpoint."""
    leave(tmp_path / "ck", 40)
    words = ("run", EXAMPLE, *SECTION, "--set", "job.steps=40", "--resume", f"file://{tmp_path}/ck/")
    line = in_process(*words, folder=tmp_path).line
    assert "the checkpoint is of step 40, and the job has 40 steps" in line


@pytest.mark.parametrize("command", ["run", "up"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param("--resume nothing --set checkpoint.url=own", "--resume nothing: nothing is there", id="nothing"),
        pytest.param(
            "--resume ck --set job.steps=40 --set checkpoint.url=ck", "the job has 40 steps", id="no step is left"
        ),
        pytest.param("--set checkpoint.url=ck", "would write over it", id="over another"),
        pytest.param("--set checkpoint.url=file/ck", "the folder cannot be made", id="a file"),
        pytest.param("--set checkpoint.url=fyle://ck", "this URL cannot be used", id="no URL"),
    ],
)
def test_files_are_looked_at_before_the_job_is_tried(command: str, words: str, said: str, tmp_path: Path) -> None:
    """Before, whoever misspelt a path waited for the trial, which may take minutes: here the job cannot be tried."""
    leave(tmp_path / "ck", 40)
    (tmp_path / "file").touch()
    broken = ("--set", "model.layers=nowhere:layers", "--set", "checkpoint.every=2")
    line = in_process(command, EXAMPLE, *broken, *words.split(), folder=tmp_path, CULM_HOME=str(tmp_path / "home")).line
    assert said in line
    assert {path.name for path in tmp_path.iterdir()} == {"ck", "file"}, "nothing has begun"


def test_a_storage_that_does_not_answer_may_hold_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "ck" / "step-00000040"
    folder.mkdir(parents=True)
    (folder / "manifest.json").symlink_to("manifest.json")  # no read of it ends
    line = in_process("run", EXAMPLE, *SECTION, folder=tmp_path).line
    assert "checkpoint url ck: it cannot be read" in line
    assert "--new-run" in line


def test_the_end_of_a_run_names_its_last_checkpoint(tmp_path: Path) -> None:
    """By the path that is there, with which one goes on, and which one exports."""
    words = ("run", EXAMPLE, *SECTION, "--nodes", "1", "--set", "pipeline.stages=1", "--set")
    done = as_process(*words, "job.steps=4", folder=tmp_path)
    assert done.code == 0, done.err
    assert "\ncheckpoint: ck/step-00000004; --resume goes on from it, and culm checkpoint export writes" in done.out
    resumed = ("--resume", "ck/step-00000004", "--new-run", "--json")
    on = as_process(*words, "job.steps=6", *resumed, folder=tmp_path)
    assert json.loads(on.out.splitlines()[-1])["checkpoint"] == "ck/step-00000006"
    elsewhere = as_process("run", EXAMPLE, "--set", "job.steps=5", "--resume", "ck/step-00000004", folder=tmp_path)
    assert "\ncheckpoint:" not in elsewhere.out, "this run has written none"
    exported = in_process("checkpoint", "export", "ck/step-00000004", "--out", "w.safetensors", folder=tmp_path)
    assert exported.out == "w.safetensors: step 4\n"
    listed = in_process("checkpoint", "ls", "ck/step-00000006/", "--json", folder=tmp_path)
    assert [each["step"] for each in json.loads(listed.out)] == [6]
    line = in_process("checkpoint", "verify", "ck/step-00000005", folder=tmp_path).line
    assert "there is no checkpoint; choose one of the steps that are there: 6, 4" in line


def test_a_run_that_is_interrupted_names_its_last_checkpoint(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "culm", "run", EXAMPLE, *SECTION, "--set", "job.steps=1000"]
    run = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    since = 0  # lines of steps after a checkpoint was whole: by the second one the run knows of it
    for line in run.stderr:
        since += " step " in line and any(tmp_path.glob("ck/step-*/manifest.json"))
        if since == 3:
            break
    run.send_signal(signal.SIGINT)
    told = run.stderr.read()
    assert run.wait() == 130
    assert re.search(r"^checkpoint: ck/step-\d{8}; --resume goes on from it", told, re.MULTILINE), told


@pytest.mark.slow
def test_runs_over_checkpoints_that_the_user_names(tmp_path: Path) -> None:
    """Gone on from the newest, from an earlier one over the newest, and refused where there is nothing to do."""
    words = ("run", EXAMPLE, *SECTION, "--json", "--set")

    def steps(*more: str) -> int:
        done = as_process(*words, *more, folder=tmp_path)
        assert done.code == 0, done.err
        return len(json.loads(done.out.splitlines()[-1])["losses"])

    assert steps("job.steps=4") == 4
    too_few = as_process(*words, "job.steps=3", "--resume", "ck", folder=tmp_path).line
    assert "resume from an earlier one by its own folder" in too_few
    assert steps("job.steps=6", "--resume", "ck") == 2
    assert steps("job.steps=3", "--resume", "ck/step-00000002", "--new-run") == 1


@pytest.mark.slow
def test_a_last_checkpoint_that_cannot_be_written_ends_the_run_with_1_and_its_weights(tmp_path: Path) -> None:
    """It ended with 0: a script that looks at the exit code believed that the weights were kept there."""
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "step-00000004").write_text("a file where the folder should be")
    done = as_process("run", EXAMPLE, *SECTION, "--set", "job.steps=4", "--out", "w", folder=tmp_path)
    assert done.code == 1
    assert "the last checkpoint is not whole" in done.err
    assert (tmp_path / "w").exists()

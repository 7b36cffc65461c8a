"""Only the job fails a run (rule 16): what goes wrong on one node ends that node, and says why."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from culm.__main__ import main
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import with_values
from culm.terminal.outcome import RunFailed
from tests.hostile.bad_nodes import ROOT, WHERE, Later, Seen, bad_job, run

LINE = r"\(bad_nodes\.py, line \d+\)"  # where it was raised


def test_a_spare_on_which_the_job_does_not_start_fails_nothing(tmp_path: Path) -> None:
    job, seen = bad_job(40), Seen()
    outcome = run(job, 3, tmp_path / "run", {"n2": {"CULM_BROKEN": "1"}}, seen=seen)
    assert outcome.sha256 == run_plain(job).sha256
    told = seen.texts("dismissed")
    assert told, seen.texts("lost", "left", "joined")
    assert all(t.startswith("n2 cannot take part, the others go on without it: ") for t in told)
    assert "lacks a library" in told[0]
    assert len(told) <= 3, "one that starts again and again is told of ever more seldom"
    lines = (tmp_path / "run" / "n2.log").read_text().splitlines()
    assert [x for x in lines if x.startswith("culm stage: ") and "lacks a library" in x], "its own last line"


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_job_that_starts_nowhere_fails_the_run(nodes: int, tmp_path: Path) -> None:
    everywhere = {f"n{i}": {"CULM_BROKEN": "1"} for i in range(nodes)}
    with pytest.raises(RunFailed, match="lacks a library") as failed:
        run(bad_job(40, stages=nodes), nodes, tmp_path / "run", everywhere)
    assert failed.value.code == 2
    assert "\n" not in str(failed.value)


def test_a_layer_that_raises_once_on_one_node_ends_that_node(tmp_path: Path) -> None:
    job, seen, flag = bad_job(40), Seen(), tmp_path / "raise"
    everywhere = {f"n{i}": {"CULM_RAISES": str(flag)} for i in range(3)}
    flag.touch()  # at once: a busy machine may look at the run again when it is over
    outcome = run(job, 3, tmp_path / "run", everywhere, seen=seen)
    assert outcome.sha256 == run_plain(job).sha256
    (lost,) = seen.texts("lost")
    assert re.search(
        rf"^n\d is lost: F\d of layers \d to \d in step \d+ raised an exception there: ValueError: out of luck {LINE}$",
        lost,
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "raise",
            rf"^F\d of layers \d to \d in step \d+ raised on n\d and n\d: ValueError: out of luck {LINE}$",
        ),
        (
            "os._exit",
            rf"raised on n\d and n\d: ProcessEnded: the job's code tried to end the process with os\._exit\(0\) {LINE}",
        ),
        (
            "sys.exit",
            r"raised on n\d and n\d: ProcessEnded: the job's code tried to end the process with exit code 0$",
        ),
        ("exit in C", "^every node has ended; see their logs in "),
        pytest.param(
            "die",
            # Whoever counts to its bound first: the coordinator deaths at one work, the launcher the ends of its nodes.
            r"processes ended, on .*, while they ran layers? .* in step \d+, which has never been"
            r"|^n\d was ended by SIGSEGV \d times: see .*log$",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_layer_that_ends_every_node_ends_the_run(how: str, said: str, tmp_path: Path) -> None:
    """By its own evidence where it leaves a word, by that of many deaths at the same work where it leaves none."""
    flag = tmp_path / "flag"
    everywhere = {f"n{i}": {"CULM_FATAL": how, "CULM_FLAG": str(flag)} for i in range(2)}
    with pytest.raises(RunFailed, match=said) as failed:
        run(bad_job(4000), 2, tmp_path / "run", everywhere, Later(flag, 3))
    assert failed.value.code == 1


def test_a_metric_that_raises_after_the_last_step_leaves_the_final_weights(tmp_path: Path) -> None:
    url, metrics = (tmp_path / "kept").as_uri(), {"unlucky": f"{WHERE}:unlucky"}
    job = bad_job(3, 2, f"checkpoint.url={url}", "checkpoint.every=100")
    asked = {"dataset": job.data.dataset, "args": job.data.args, "every": 100, "samples": 32, "metrics": metrics}
    evaluates = with_values(job, {f"evaluate.{key}": value for key, value in asked.items()})
    why = r"^E\d of layers \d to \d in step 3 raised on n\d and n\d: .*ValueError: out of luck"
    mend = f"every step is trained: culm checkpoint export {url} --out FILE gives the final weights$"
    with pytest.raises(RunFailed, match=f"{why}.*; {mend}") as failed:
        run(evaluates, 2, tmp_path / "run")
    assert failed.value.code == 1
    out = tmp_path / "weights.safetensors"
    assert main(["checkpoint", "export", url, "--out", str(out)]) == 0
    final = {f"{i}.{key}": value for i, layer in run_plain(job).layers for key, value in layer.items()}
    weights = load_file(out)
    assert weights.keys() == final.keys()
    assert all(torch.equal(weights[key], final[key]) for key in final)


def test_a_layer_that_ends_the_process_is_refused_before_anything_starts(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    words = ["run", str(ROOT / "examples" / "digits_mlp.toml"), "--set", "model.layers=tests.hostile.bad_nodes:layers"]
    done = subprocess.run(
        [sys.executable, "-m", "culm", *words, "--set", "model.args={}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CULM_FATAL": "os._exit", "CULM_FLAG": str(flag)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "tried to end the process with os._exit(0)" in done.stderr.splitlines()[-1]

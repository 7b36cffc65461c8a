"""The command line as a user meets it: results, and one clear line for every mistake."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.hostile.commands import in_process
from tests.signals import with_default_signals

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "examples" / "digits_mlp.toml")
TIMEOUT = 120


def culm(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "culm", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def the_one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command that failed on bad input."""
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("culm ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def test_run_prints_its_result_as_json_and_writes_the_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from culm.pipeline.checkpoints.digest import weights_sha256

    done = culm("run", DIGITS, "--set", "job.steps=5", "--json", "--out", "w.safetensors", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == 5
    assert [float.fromhex(x) for x in result["loss_hex"]] == result["losses"]
    layers: dict[int, dict[str, object]] = {}
    for name, tensor in load_file(tmp_path / "w.safetensors").items():
        index, _, rest = name.partition(".")
        layers.setdefault(int(index), {})[rest] = tensor
    assert weights_sha256(layers.items()) == result["weights_sha256"]  # type: ignore[arg-type]
    (events,) = tmp_path.glob("runs/*/events.jsonl")
    again = culm("cost", "--log", str(events), "--json", folder=tmp_path)
    assert json.loads(again.stdout)["samples"] == 320, "the events stay when the coordinator is gone"


def test_a_bad_job_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """In a process of its own; ``tests/hostile/test_bad_jobs.py`` has what else is refused."""
    words = ["--set", "model.layers=tests.integration.bad_models:tuples"]
    assert "layer 2 (Linear) raised TypeError" in the_one_line(culm("run", DIGITS, *words, folder=tmp_path))
    assert not (tmp_path / "runs").exists()


def test_a_node_without_a_coordinator_says_so(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        done = culm("stage", "--connect-timeout", "2", "--coordinator", address, folder=tmp_path)
    assert f"no coordinator at {address} so far: trying for 1 s more" in done.stderr
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"culm stage: no coordinator at {address}")


def test_a_port_in_use(taken_port: int, tmp_path: Path) -> None:
    address = f"127.0.0.1:{taken_port}"
    assert "port in use" in the_one_line(culm("run", DIGITS, "--coordinator-address", address, folder=tmp_path))
    assert "in use" in the_one_line(culm("stage", "--listen", address, folder=tmp_path))


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_resumed_starts_no_run(tmp_path: Path) -> None:
    """Also where the job's own folder holds one of an older run, with which another coordinator would go on."""
    words = ("run", DIGITS, "--set", "checkpoint.url=ck", "--set", "checkpoint.every=4", "--set", "job.steps=6")
    first = culm(*words, folder=tmp_path)
    assert first.returncode == 0, first.stderr
    listed = json.loads(culm("checkpoint", "ls", "ck", "--json", folder=tmp_path).stdout)
    assert listed[0]["step"] == 6, "the last checkpoint is whole when the run has ended"
    assert listed[0]["whole"]
    refused = culm(*words, "--set", "job.steps=9", "--resume", "nothing", "--new-run", folder=tmp_path)
    assert "--resume nothing: nothing is there" in the_one_line(refused)


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [
        (signal.SIGINT, 1, 130),
        (signal.SIGINT, 2, 130),
        # ``test_ending`` kills one as well, just before the first step.
        pytest.param(signal.SIGKILL, 1, -signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_launcher_that_ends_leaves_nothing_running(
    number: signal.Signals, times: int, code: int, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        # A job in the background, as continuous integration may be, ignores SIGINT, and its children inherit that.
        with_default_signals([sys.executable, "-m", "culm", "run", DIGITS, "--set", "job.steps=100000"]),
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "| step" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 5, "redis, a coordinator and three nodes"
    process.send_signal(number)
    if times == 2:  # it says at once that it has heard the first one
        for line in process.stderr:
            if "Ctrl-C once more ends at once" in line:
                break
        process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive, f"left running: {alive}"
    assert process.returncode == code


def test_verify_says_identical(tmp_path: Path) -> None:
    # Steps enough for an order that came too late to be given again, further ahead.
    done = culm("verify", DIGITS, "--set", "job.steps=100", "--kills", "1", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["identical"] is True


def test_a_place_to_listen_at_that_is_set_for_something_else_is_not_for_every_local_node(
    taken_port: int, tmp_path: Path
) -> None:
    """``culm ui`` and the services read the variables too; no two nodes can listen at one port."""
    address = f"127.0.0.1:{taken_port}"
    environment = {"CULM_LISTEN": address, "CULM_ADVERTISE": address}
    done = in_process("run", DIGITS, "--set", "job.steps=2", "--json", folder=tmp_path, **environment)
    assert done.code == 0, done.err

"""A cluster that stays: it outlives the command that starts it, and culm down ends every process of it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from culm.local import clusters
from culm.local.authority import issue, make_authority
from culm.local.clusters import KEEPER, Process, Record

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "examples" / "digits_mlp.toml")
TIMEOUT = 120
ALONE = ("--nodes", "1")  # where the number of nodes changes nothing


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CULM_HOME", str(tmp_path))
    yield tmp_path
    for folder in tmp_path.glob("clusters/*/"):
        clusters.end(folder)


def culm(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "culm", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT)


def up(*words: str) -> dict[str, Any]:
    done = culm("up", DIGITS, "--no-ui", "--coordinator-address", "127.0.0.1:0", "--json", *words)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def running(pids: dict[str, int]) -> list[str]:
    return [n for n, pid in pids.items() if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def test_it_stays_until_it_is_taken_down(home: Path) -> None:
    told = up("--name", "one", "--spares", "1")
    assert {KEEPER, "redis", "coordinator", "n0", "n1", "n2", "n3"} == set(told["pids"]) == set(running(told["pids"]))
    status = culm("status", "--coordinator", told["coordinator"], "--json")
    assert json.loads(status.stdout)["job"] == "digits-mlp"

    again = culm("up", DIGITS, "--name", "one")
    assert again.returncode == 2
    assert f"a cluster of that name is up at {told['coordinator']}; end it with culm down one" in again.stderr

    down = culm("down")
    assert down.returncode == 0
    kept, ended = down.stdout.splitlines()
    assert "steps are lost" in kept
    assert ended.startswith("one is down: keeper,")
    folder = clusters.folder_of("one")
    assert ended.endswith(f"; logs and events: {folder}")
    events = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events.count("joined") == 4
    assert running(told["pids"]) == []

    for words in (["down", "one"], ["down"]):
        assert culm(*words).returncode == 0
    assert up("--name", "one", *ALONE)["pids"]["n0"] != told["pids"]["n0"]


@pytest.mark.slow
def test_with_several_the_one_to_end_has_to_be_named(home: Path) -> None:
    told = {name: up("--name", name, *ALONE) for name in ("one", "two")}
    unclear = culm("down")
    assert unclear.returncode == 2
    assert "several clusters are up: one, two; name one of them" in unclear.stderr
    assert culm("down", "two").returncode == 0
    assert running(told["two"]["pids"]) == []
    assert set(running(told["one"]["pids"])) == set(told["one"]["pids"])


@pytest.mark.slow
def test_frozen_processes_are_ended_too(home: Path) -> None:
    pids = up("--name", "frozen", *ALONE)["pids"]
    for name in (KEEPER, "n0"):
        os.kill(pids[name], signal.SIGSTOP)
    assert culm("down", "frozen").returncode == 0
    assert running(pids) == []


@pytest.mark.slow
def test_what_its_keeper_leaves_behind_is_ended(home: Path) -> None:
    told = up("--name", "orphans", *ALONE)
    with subprocess.Popen(["sleep", "600"]) as left:
        found = Process.of(left.pid)
        assert found is not None
        folder = Path(told["folder"])
        record = clusters.read(folder)
        assert record is not None
        os.kill(told["pids"][KEEPER], signal.SIGKILL)
        clusters.write(folder, Record(name="orphans", processes={**record.processes, "left": found}))
        assert culm("down", "orphans").returncode == 0
        assert left.wait() == -signal.SIGTERM
    assert running(told["pids"]) == []


def test_another_process_of_the_same_id_is_left_alone(home: Path) -> None:
    folder = clusters.make_folder("old")
    with subprocess.Popen(["sleep", "600"]) as other:
        found = Process.of(other.pid)
        assert found is not None
        clusters.write(folder, Record(name="old", processes={"n0": Process(other.pid, found.started - 3600.0)}))
        assert clusters.running_clusters() == []
        assert culm("down", "old").returncode == 0
        assert other.poll() is None
        other.terminate()


def test_a_cluster_that_does_not_come_up_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = culm("up", DIGITS, "--name", "unlucky", "--no-ui", "--coordinator-address", address)
    assert done.returncode == 2
    assert f"cannot listen on {address}: port in use" in done.stderr
    make_authority(home / "authority")
    monkeypatch.setenv("CULM_TLS_DIR", str(issue(home / "authority", "coordinator", "coordinator", days=1.0)))
    elsewhere = "192.0.2.1:7070"  # no address of this machine: RFC 5737
    done = culm("up", DIGITS, "--name", "unlucky", "--no-ui", "--coordinator-address", elsewhere)
    assert done.returncode == 2
    assert "the cluster did not come up" in done.stderr
    assert clusters.running_clusters() == []
    assert culm("up", DIGITS, "--name", "../x").returncode == 2

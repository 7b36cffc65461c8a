"""Nodes of a local cluster that have gone for good, and the command that starts them again."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from culm.engines.engine import ADD
from culm.local import clusters
from culm.local.clusters import KEEPER, RECORD, Record
from tests.integration.test_up_down import culm, up

SECONDS = 120.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CULM_HOME", str(tmp_path))
    yield tmp_path
    for folder in tmp_path.glob("clusters/*/"):
        clusters.end(folder)


def known() -> Record:
    record = clusters.read(clusters.folder_of("one"))
    assert record is not None
    return record


def until(what: str, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS:g} s"
        time.sleep(0.1)


def test_nodes_that_are_not_started_again_are_named_and_come_back_when_asked_for(home: Path) -> None:
    up("--name", "one", "--nodes", "1", "--spares", "1", "--set", "job.steps=1000000")

    def step() -> int:
        return int(json.loads(culm("status", "--cluster", "one", "--json").stdout)["step"])

    until("it trains", lambda: step() > 3)
    assert culm("drain", "n1", "--cluster", "one").returncode == 0
    until("n1 has gone", lambda: "n1" in known().gone)
    seen = set()
    while "n0" not in known().gone:  # it crashes again and again
        node = known().processes.get("n0")
        if node is not None and node.pid not in seen and node.find() is not None:
            os.kill(node.pid, signal.SIGABRT)
            seen.add(node.pid)
        time.sleep(0.05)
    assert len(seen) == 4
    listed = culm("clusters").stdout
    assert "n0                   not started again: n0 was ended by SIGABRT 4 times" in listed
    assert "n1                   not started again: it was drained" in listed
    assert "culm add starts it" in listed

    assert culm("add", "--spares", "1").stdout == "one starts n1, n0, 1 more\n"
    until("all run", lambda: {"n0", "n1", "n2"} <= set(known().processes) and not known().gone)
    before = step()
    until("it trains on", lambda: step() > before + 3)
    assert "every node runs" in culm("add").stdout


def test_a_record_that_cannot_be_written_does_not_end_the_cluster(home: Path) -> None:
    """As on a full disk: all of it ended with a traceback when the next node was killed."""
    told = up("--name", "one", "--nodes", "1", "--set", "job.steps=1000000")
    folder, keeper = Path(told["folder"]), told["pids"][KEEPER]
    os.kill(keeper, signal.SIGSTOP)  # else it could look while there is neither
    (folder / RECORD).rename(folder / "aside")
    (folder / RECORD).mkdir()
    os.kill(told["pids"]["n0"], signal.SIGKILL)
    os.kill(keeper, signal.SIGCONT)
    until("it says so", lambda: "its record is written as soon as that works" in (folder / "keeper.log").read_text())
    os.kill(keeper, signal.SIGSTOP)
    (folder / RECORD).rmdir()
    (folder / "aside").rename(folder / RECORD)
    os.kill(keeper, signal.SIGCONT)
    until("n0 is on record again", lambda: known().processes["n0"].pid != told["pids"]["n0"])
    assert known().processes[KEEPER].pid == keeper
    assert (folder / "keeper.log").read_text().count("its record is written") == 1


def test_whatever_ends_a_keeper_is_on_record(home: Path) -> None:
    told = up("--name", "one", "--nodes", "1", "--set", "job.steps=1000000")
    asked = Path(told["folder"]) / ADD
    asked.with_suffix(".part").write_text("{}")  # which nobody writes: it lacks the number
    asked.with_suffix(".part").rename(asked)
    until("all have ended", lambda: not known().is_up)
    assert f"one on local has ended: KeyError: 'further'; see {told['folder']}/keeper.log" in culm("clusters").stdout


def test_a_cluster_that_has_ended_by_itself_is_told_as_such(home: Path) -> None:
    told = up("--name", "one", "--nodes", "1")
    os.kill(told["pids"][KEEPER], signal.SIGKILL)
    until("all have ended", lambda: not known().is_up)
    why = "its processes were killed, or the machine has been started anew"
    assert f"one on local has ended: {why}" in culm("clusters").stdout
    assert json.loads(culm("clusters", "--json").stdout)["one"]["ended"] == why
    for words in (["status", "--cluster", "one"], ["drain", "n0", "--cluster", "one"], ["add", "one"]):
        asked = culm(*words)
        assert asked.returncode == 2
        assert why in asked.stderr
    assert f"one had ended already: {why}" in culm("down").stdout
    assert culm("clusters").stdout == "no cluster is up\n"

"""A cluster of processes of this machine, which stays when the terminal is closed. Its keeper is ``engines.keeper``."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from culm.engines.command import last_words
from culm.engines.engine import Tell, Wish
from culm.local import clusters
from culm.local.clusters import KEEPER, Process, Record
from culm.pipeline import private
from culm.pipeline.errors import JobError

START_SECONDS = 120.0  # as long as the keeper waits
UI_SECONDS = 20.0
POLL_SECONDS = 0.05


class Local:
    more = "culm add starts nodes again"
    options: Mapping[str, str] = {}

    def up(self, folder: Path, wish: Wish, tell: Tell) -> Record:
        told = {
            "job_folder": str(wish.job_folder),
            "nodes": wish.nodes,
            "address": wish.address,
            "resume": wish.resume,
            "allow": wish.allow,
            "ui": wish.ui,
        }
        private.write_text(folder / "wish.json", json.dumps(told))
        keeper = _start_keeper(folder, Record(name=wish.name, job=wish.job))
        tell(f"waiting until the coordinator listens, {START_SECONDS:g} s at most; logs: {folder}")
        return _await_ui(folder, _await_address(folder, keeper), tell)

    def plan(self, folder: Path, wish: Wish) -> str:
        nodes = ", ".join(f"n{number}" for number in range(wish.nodes))
        return f"processes of this machine: redis, coordinator, {nodes}{', ui' if wish.ui else ''}\n"

    def refusals(self, folder: Path, wish: Wish) -> list[JobError]:
        return []

    def reach(self, folder: Path, record: Record) -> str:
        return record.address

    def parts(self, folder: Path, record: Record) -> Mapping[str, str]:
        running = record.running()
        known = {name: "running" if name in running else "ended" for name in record.processes}
        return {**known, **{name: f"not started again: {why}; culm add starts it" for name, why in record.gone.items()}}

    def logs(self, folder: Path, record: Record) -> Mapping[str, Callable[[], Iterator[str]]]:
        files = [*sorted(folder.glob("*.log")), *sorted((folder / "run").glob("*.log"))]
        return {file.stem: partial(lines_of, file) for file in files}

    def down(self, folder: Path, record: Record) -> list[str]:
        return clusters.end(folder)


def lines_of(file: Path) -> Iterator[str]:
    """The lines of a log as far as it is written, without their ends."""
    with suppress(OSError), file.open(errors="replace") as opened:
        yield from (line.rstrip("\n") for line in opened)


def last_lines_of(file: Path, most: int) -> tuple[int, list[str]]:
    """So many at most, and how many lines come before them."""
    lines = list(lines_of(file))
    return max(0, len(lines) - most), lines[-most:]


def _start_keeper(folder: Path, record: Record) -> "subprocess.Popen[bytes]":
    """Starts the process that starts all others, and puts it on record before it does anything."""
    with open(folder / "keeper.log", "ab", opener=private.opener) as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "culm.engines.keeper", str(folder.resolve())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives this process and its terminal
        )
    found = Process.of(keeper.pid)
    clusters.write(folder, replace(record, processes={KEEPER: found} if found is not None else {}))
    assert keeper.stdin is not None
    with suppress(BrokenPipeError), keeper.stdin as told:  # if it has ended already, its log says why
        told.write(b"go\n")
    return keeper


def _await_address(folder: Path, keeper: "subprocess.Popen[bytes]") -> Record:
    """The record once the coordinator listens. Raises JobError with the keeper's last words."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        record = clusters.read(folder)
        if record is not None and record.address:
            return record
        try:
            keeper.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        said = last_words(lines_of(folder / "keeper.log")).removeprefix("culm up: ")
        raise JobError(f"the cluster did not come up: {said}", str(folder), "see the logs there")
    clusters.end(folder)
    log = folder / "run" / "coordinator.log"
    said = f": {found}" if (found := last_words(lines_of(log))) else ""
    raise JobError(f"the coordinator does not listen after {START_SECONDS:g} s{said}", str(log), "see there")


def _await_ui(folder: Path, record: Record, tell: Tell) -> Record:
    """The record once the UI answers, if one was started; as it is when it ends or takes too long."""
    if "ui" in record.processes and not record.ui:
        tell(f"waiting until the dashboard answers, {UI_SECONDS:g} s at most")
    deadline = time.monotonic() + UI_SECONDS
    while "ui" in record.processes and not record.ui and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        record = clusters.read(folder) or record
    return record

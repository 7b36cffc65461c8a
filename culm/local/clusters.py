"""Clusters that stay: the folder of each, the record of its processes, and how to end them.

The id of a process may be used again, so a process is known by its id and its start time, never by its name.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from culm.pipeline import private
from culm.pipeline.errors import JobError
from culm.pipeline.text import check_name

RECORD = "cluster.json"
KEEPER = "keeper"  # the process that starts all others and ends them
LOCAL = "local"  # the engine of clusters of processes of this machine
CLOCK_SECONDS = 1.0  # by how much a start time may change when the clock is set
ASK_SECONDS = 20.0  # for the keeper, which first ends its own processes
KILL_SECONDS = 5.0
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Process:
    """``started``: unix time."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The process that has this id now, if there is one."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    def find(self) -> psutil.Process | None:
        """The very process, if it still runs."""
        try:
            found = psutil.Process(self.pid)
            same = abs(found.create_time() - self.started) < CLOCK_SECONDS
        except psutil.NoSuchProcess:
            return None
        return found if same and _runs(found) else None


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a cluster. ``address`` is empty until its coordinator listens, ``ui`` until its UI answers.

    ``engine``: what it runs on. ``processes``: of a local one. ``handles``: of any other one, by what its engine calls
    its parts; empty once it is down. ``certificates``: the folder of those that it asks for, empty without TLS.
    ``gone``: of a local one, the nodes that nobody starts again by himself, and why; with ``keeper`` the whole cluster.
    """

    name: str
    job: str = ""
    address: str = ""
    ui: str = ""
    processes: Mapping[str, Process] = field(default_factory=dict)
    engine: str = LOCAL
    handles: Mapping[str, str] = field(default_factory=dict)
    certificates: str = ""
    gone: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_up(self) -> bool:
        """What an engine keeps is up until ``culm down``; a local cluster as long as a process of it runs."""
        return bool(self.handles) or bool(self.running())

    @property
    def lapsed(self) -> str:
        """Why a local cluster has ended that ``culm down`` has not; empty for any other one."""
        if self.engine != LOCAL or not self.processes or self.running():
            return ""
        return self.gone.get(KEEPER, "its processes were killed, or the machine has been started anew")

    def running(self) -> dict[str, psutil.Process]:
        """Those of its processes that still run, by name."""
        found = {name: process.find() for name, process in self.processes.items()}
        return {name: process for name, process in found.items() if process is not None}


def clusters_folder() -> Path:
    """``$CULM_HOME/clusters``, by default ``~/.culm/clusters``."""
    return Path(os.environ.get("CULM_HOME") or Path.home() / ".culm") / "clusters"


def folder_of(name: str) -> Path:
    """Raises JobError for a name that cannot be a folder's."""
    return clusters_folder() / check_name(name, "the cluster's name")


def write(folder: Path, record: Record) -> None:
    """Writes the record in one move, so that no reader finds half of it."""
    private.write_text(folder / RECORD, json.dumps(asdict(record), indent=1))


def read(folder: Path) -> Record | None:
    """The cluster's record, if it has one. Of one that another version of Culm has written, what this one knows.

    Raises JobError where it cannot be read.
    """
    file = folder / RECORD
    try:
        document = json.loads(file.read_text())
        processes = {name: Process(**_known(Process, each)) for name, each in document.get("processes", {}).items()}
        return Record(**{**_known(Record, document), "processes": processes})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        mend = "use the version of Culm that wrote it, or remove the file if its cluster has ended"
        raise JobError(f"the cluster's record cannot be read ({error})", str(file), mend) from error


def _known(kind: type[Record] | type[Process], document: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: document[each.name] for each in fields(kind) if each.name in document}


def running_clusters() -> list[str]:
    """The names of the clusters that are up."""
    return [record.name for record in _records() if record.is_up]


def lapsed_clusters() -> dict[str, str]:
    """The names of the local clusters that have ended, though nobody took them down, and why."""
    return {record.name: why for record in _records() if (why := record.lapsed)}


def listening_at(address: str) -> str:
    """The name of the cluster that is up there; empty: none is."""
    return next((record.name for record in _records() if record.address == address and record.is_up), "")


def _records() -> list[Record]:
    """Of all clusters but those whose record cannot be read: whoever asks for the others gets them all the same."""
    found = []
    for folder in sorted(clusters_folder().glob("*/")):
        try:
            found.append(read(folder))
        except JobError as error:
            _say_once(f"culm: {error}")
    return [record for record in found if record is not None]


@cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)


def refuse_running(name: str) -> None:
    """Raises JobError when a cluster of that name is up."""
    before = read(folder_of(name))
    if before is not None and before.is_up:
        where = f" at {before.address}" if before.address else ""
        mend = f"end it with culm down {name}, or give this one another --name"
        raise JobError(f"a cluster of that name is up{where}", f"--name {name}", mend)


def make_folder(name: str) -> Path:
    """Makes the empty folder of a new cluster, and removes what an ended one of that name left there.

    Raises JobError when a cluster of that name is up.
    """
    folder = folder_of(name)
    refuse_running(name)
    if read(folder) is not None:
        shutil.rmtree(folder)
    try:
        private.make_folder(folder)
        write(folder, Record(name=name))
    except OSError as error:
        raise JobError(
            f"the folder cannot be made ({error.strerror})", str(folder), "let CULM_HOME name a folder of yours"
        ) from error
    return folder


def end(folder: Path) -> list[str]:
    """Ends every process of the cluster, the keeper first, and returns the names of those that ran."""
    ended: dict[str, None] = {}
    # Twice: the keeper may have started another process since the record was read.
    for seconds in (ASK_SECONDS, KILL_SECONDS):
        record = read(folder)
        running = record.running() if record is not None else {}
        ended.update(dict.fromkeys(running))
        keeper = running.pop(KEEPER, None)
        if keeper is not None:
            _end([keeper], seconds)
        _end(running.values(), KILL_SECONDS)
    if record is not None and record.processes:
        write(folder, replace(record, processes={}, gone={}))
    return list(ended)


def _end(processes: Collection[psutil.Process], seconds: float) -> None:
    """Asks each process to end, and kills it after so many seconds."""
    _tell(processes, psutil.Process.terminate)
    _tell(processes, psutil.Process.resume)  # a frozen one cannot hear it otherwise
    _tell(_left_after(processes, seconds), psutil.Process.kill)
    _left_after(processes, seconds)


def _tell(processes: Iterable[psutil.Process], signalled: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            signalled(process)


def _left_after(processes: Collection[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so many seconds; returns at once when there are none."""
    deadline = time.monotonic() + seconds
    while left := [p for p in processes if _runs(p)]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return left


def _runs(process: psutil.Process) -> bool:
    """Whether it runs. A zombie does not: in a container without an init nobody may reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

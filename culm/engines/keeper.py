"""The process behind ``culm up``: keeps a local cluster alive until it is told to end.

It is the parent of all the others. So they end with it, on Linux also when it is killed with -9.
"""

import importlib.util
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from culm.engines.engine import ADD
from culm.local import clusters
from culm.local.cluster import USUAL_ADDRESS, LocalCluster
from culm.local.clusters import KEEPER, RECORD, Process, Record
from culm.local.ports import free_port, is_free
from culm.local.processes import Child
from culm.local.redis_binary import RedisUnavailable
from culm.pipeline.default_ports import UI_PORT
from culm.pipeline.job import load_job
from culm.terminal import interrupts
from culm.terminal.outcome import RunFailed

POLL_SECONDS = 0.2


def ui_command() -> list[str]:
    """What starts the UI, or nothing where it is not installed."""
    return [sys.executable, "-m", "culm", "ui"] if importlib.util.find_spec("streamlit") is not None else []


class Ui:
    """The UI's process, and its address once it answers there. One that is killed is started again."""

    def __init__(self, command: list[str], folder: Path, coordinator: str) -> None:
        self._port = UI_PORT if is_free(UI_PORT) else free_port()
        self._command, self._log = command, folder / "ui.log"
        self._listen = {"CULM_COORDINATOR": coordinator, "CULM_LISTEN": f"127.0.0.1:{self._port}"}
        self.child = self._start()

    def check(self) -> None:
        if (self.child.returncode or 0) < 0:
            self.child = self._start()

    def _start(self) -> Child:
        return Child.start(self._command, self._log, {**os.environ, **self._listen})

    @property
    def address(self) -> str:
        """Empty while nobody answers."""
        if self.child.returncode is not None or is_free(self._port):
            return ""
        return f"http://127.0.0.1:{self._port}"


def keep(folder: Path) -> int:
    """Runs the cluster that ``culm up`` has described in the folder, until SIGTERM."""
    interrupts.end_on_sigterm()
    record = clusters.read(folder)
    if record is None:
        return 2
    wish = json.loads((folder / "wish.json").read_text())
    cluster = LocalCluster(
        load_job(folder / "job.toml", []),
        Path(wish["job_folder"]),
        wish["nodes"],
        address=wish["address"] or USUAL_ADDRESS,
        folder=folder / "run",
        resume=wish["resume"],
        allow=wish["allow"],
        stays_without_nodes=True,
    )
    ui: Ui | None = None
    try:
        with cluster:
            command = ui_command() if wish["ui"] else []
            ui = Ui(command, folder, cluster.address) if command else None
            failing = False
            while True:
                # The run needs nothing of what is read and written here, so a full disk does not end it.
                try:
                    if not (folder / RECORD).exists():
                        break
                    _add_what_is_asked_for(folder, cluster)
                    if ui is not None:
                        ui.check()
                    record = _noted(folder, record, cluster, ui)
                    failing = False
                except OSError as error:
                    if not failing:
                        _say(f"{error}: the cluster goes on, and its record is written as soon as that works")
                    failing = True
                time.sleep(POLL_SECONDS)
                cluster.check()
        _say(f"{folder} has been removed, so its cluster is ended: nobody could find it")
        return 1
    except (RunFailed, RedisUnavailable) as error:
        _say(str(error))
        _note_the_end(folder, record, str(error))
        return error.code if isinstance(error, RunFailed) else 2
    except KeyboardInterrupt:
        return 0
    except Exception as error:
        _note_the_end(folder, record, f"{type(error).__name__}: {error}; see {folder / 'keeper.log'}")
        raise
    finally:
        if ui is not None:
            ui.child.stop()


def _say(text: str) -> None:
    """Into the keeper's log, where its disk has room for it."""
    with suppress(OSError):
        print(f"culm up: {text}", file=sys.stderr)


def _note_the_end(folder: Path, record: Record, why: str) -> None:
    """Puts on record why the whole cluster ends."""
    with suppress(OSError):
        clusters.write(folder, replace(record, gone={**record.gone, KEEPER: why}))


def _add_what_is_asked_for(folder: Path, cluster: LocalCluster) -> None:
    """Starts the nodes that ``culm add`` asks for, and removes the file that says so: that is the answer."""
    with suppress(FileNotFoundError):
        asked = json.loads((folder / ADD).read_text())
        (folder / ADD).unlink()  # first: where that fails nothing is started, and nothing twice at the next turn
        cluster.add_all(asked["further"])


def _noted(folder: Path, record: Record, cluster: LocalCluster, ui: Ui | None) -> Record:
    """Puts the present processes on record if they have changed."""
    pids = {KEEPER: os.getpid(), **cluster.pids()}
    if ui is not None and ui.child.returncode is None:
        pids["ui"] = ui.child.pid
    known = {p.pid: p for p in record.processes.values()}
    processes = {name: known.get(pid) or Process.of(pid) for name, pid in pids.items()}
    living = {name: process for name, process in processes.items() if process is not None}
    noted = replace(
        record,
        address=cluster.address,
        ui=record.ui or (ui.address if ui is not None else ""),
        processes=living,
        gone=dict(cluster.gone),
    )
    if noted != record:
        clusters.write(folder, noted)
    for name in noted.gone.keys() - record.gone.keys():
        _say(f"{name} is not started again: {noted.gone[name]}; culm add starts it")
    return noted


if __name__ == "__main__":
    # ``culm up`` writes this line once this process is on record. If it dies before that, the line never comes.
    if sys.stdin.readline():
        sys.exit(keep(Path(sys.argv[1])))

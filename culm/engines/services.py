"""What one machine of a cluster runs of a job: the coordinator with its Redis, or a stage server, kept running.

Engines start these functions there: in a job of Slurm, in an actor of Ray. All that they need is a *kit*, files in a
folder:

    settings.json       of the run: its name, how many nodes, what it resumes, where the user's modules lie
    job.toml            the job
    certs/ROLE          certificates of a role (``rpc.tls``)

The coordinator's folder gets ``redis/``, its data, and ``address``, where it listens. Whoever starts it again with the
same folder, on this machine or another one, goes on with the same run.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from culm.engines.engine import Wish
from culm.local.authority import issue, make_authority
from culm.local.cluster import LocalCluster
from culm.local.processes import Child
from culm.pipeline import private
from culm.pipeline.job import load_job
from culm.pipeline.rpc.located import located
from culm.pipeline.text import LONGEST_NAME

ROLES = ("coordinator", "stage", "operator")
DAYS = 90.0
DRAIN_SECONDS = 25.0  # where nobody knows how long a machine stays after SIGTERM
POLL_SECONDS = 0.2
FAILED = "failed:"  # how the state of a coordinator begins that will not do better
NO_LIMIT = "this waits for the coordinator as long as the cluster needs for it; Ctrl-C ends what was started"
ATTEMPTS = 5
ASK_AGAIN_SECONDS = 5.0  # where the coordinator is
FIRST_PAUSE, MOST_PAUSE = 1.0, 30.0  # seconds between a service's end and its next start, doubled up to the most
RAN_WELL_SECONDS = 60.0  # after which the next pause is the first one again


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``paths``: where the user's modules lie on the machines, from the current folder of a service there."""

    run: str
    nodes: int
    resume: str
    allow: str
    paths: tuple[str, ...]


def make_kit(folder: Path, wish: Wish, paths: tuple[str, ...] = ()) -> None:
    """Adds settings and certificates to a folder that has the job.

    ``paths``: where the user's modules lie; by default in the folders that they lie in here, which machines share.
    """
    run = f"{wish.name[: LONGEST_NAME - 9]}-{secrets.token_hex(4)}"
    paths = paths or (os.getcwd(), str(wish.job_folder))
    settings = Settings(run=run, nodes=wish.nodes, resume=wish.resume, allow=wish.allow, paths=paths)
    private.write_text(folder / "settings.json", json.dumps(asdict(settings)))
    certificates = private.make_folder(folder / "certs")
    make_authority(certificates)
    for role in ROLES:
        issue(certificates, role, role, DAYS, run)


def packed(folder: Path, role: str) -> dict[str, bytes]:
    """The files of a kit that a role needs, for machines that do not share the folder."""
    files = [folder / "settings.json", folder / "job.toml", *sorted((folder / "certs" / role).iterdir())]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def unpacked(files: Mapping[str, bytes], folder: Path) -> None:
    """Lays them out in a folder of this machine, for this user alone."""
    private.make_folder(folder)
    for name, content in files.items():
        private.make_folder((folder / name).parent)
        private.write_whole(folder / name, lambda part, content=content: part.write_bytes(content))  # type: ignore[misc]


def read_settings(folder: Path) -> Settings:
    document = json.loads((folder / "settings.json").read_text())
    return Settings(**{**document, "paths": tuple(document["paths"])})


def read_address(folder: Path) -> str:
    """Where the coordinator listens; empty while it does not."""
    return located(f"file:{folder / 'address'}")


def keep_coordinator(folder: Path, host: str = "", stop: threading.Event | None = None) -> None:
    """Runs the coordinator and its Redis until ``stop``, and starts again whichever ends. Raises RunFailed.

    ``host``: under which name the nodes reach this machine; by default its own.
    """
    settings, known = read_settings(folder), read_address(folder)
    os.environ["CULM_TLS_DIR"] = str(folder / "certs" / "coordinator")
    cluster = LocalCluster(
        load_job(folder / "job.toml", []),
        None,
        0,
        # Where it was found before, though the port may be taken for a moment. On another machine it may stay taken.
        address=",".join([*[f"0.0.0.0:{known.rpartition(':')[2]}"] * (ATTEMPTS if known else 0), "0.0.0.0:0"]),
        folder=folder,
        resume=settings.resume,
        allow=settings.allow,
        environments={"coordinator": {"CULM_RUN": settings.run}},
        waits_for=settings.nodes,
        has_led=bool(known),
    )
    stop = stop or threading.Event()
    with cluster:
        told = ""
        while True:
            if cluster.address != told:
                told = cluster.address
                private.write_text(folder / "address", f"{host or socket.gethostname()}:{told.rpartition(':')[2]}")
            if stop.wait(POLL_SECONDS):
                return
            cluster.check()


class StageServer:
    """A stage server that is started again however it ends, until that means that it is no longer needed.

    That is code 0: it has handed over after a notice, or its run is done.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        log: Path,
        address: Callable[[], str],
        is_down: Callable[[], bool] = lambda: False,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        """``address``: of the coordinator, asked for again and again; empty while nobody knows.

        ``is_down``: whether the cluster was taken down, and this server is to end without handing over.
        ``drain_seconds``: how long the machine stays after SIGTERM.
        """
        self._name = name
        self._log = log
        self._address = address
        self._is_down = is_down
        self._drain_seconds = drain_seconds
        self._notice = private.make_folder(folder) / f"{name}.notice"
        self._notice.unlink(missing_ok=True)
        self._known = folder / f"{name}.coordinator"  # where the coordinator was last, for the stage server
        self._asked = 0.0
        self._environment = _environment(folder, read_settings(folder))
        self._stop = threading.Event()
        self._child: Child | None = None

    @property
    def told(self) -> bool:
        """Whether its machine is to go."""
        return self._notice.exists()

    def notice(self, seconds: float | None) -> None:
        """This machine will be gone, in so many seconds if that is known: the node hands over."""
        private.write_text(self._notice, "" if seconds is None else f"{seconds:.1f}")
        if self._child is None or self._child.returncode is not None:
            self._stop.set()  # there is nothing to hand over

    def stop(self) -> None:
        """Ends it now."""
        self._stop.set()
        if self._child is not None:
            self._child.stop()

    def run(self) -> None:
        """On the thread that calls it, which the process is tied to."""
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            if not self._is_located():
                self._stop.wait(POLL_SECONDS)
                continue
            child = self._child = Child.start(self._words(), self._log, self._environment)
            while not child.wait(POLL_SECONDS):
                self._is_located()
                if self._is_down():
                    self.stop()
            if child.returncode == 0 or self.told:
                return
            pause = FIRST_PAUSE if child.ran > RAN_WELL_SECONDS else min(2 * pause, MOST_PAUSE)
            print(f"{self._name} ended with code {child.returncode}: {child.last_line()}", file=sys.stderr, flush=True)
            self._stop.wait(pause)

    def _is_located(self) -> bool:
        """Whether the coordinator's address is known. Puts a new one where the stage server looks for it."""
        if time.monotonic() - self._asked > ASK_AGAIN_SECONDS or not self._known.exists():
            self._asked = time.monotonic()
            address = self._address()
            if address and address != located(f"file:{self._known}"):
                private.write_text(self._known, address)
        return self._known.exists()

    def _words(self) -> list[str]:
        words = [sys.executable, "-m", "culm", "stage", "--coordinator", f"file:{self._known}", "--name", self._name]
        words += ["--listen", "0.0.0.0:0", "--notices", f"auto,file:{self._notice}"]
        return [*words, "--drain-seconds", f"{self._drain_seconds:g}"]


def _environment(folder: Path, settings: Settings) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CULM_LISTEN", "CULM_ADVERTISE")}
    path = (*map(os.path.abspath, settings.paths), os.environ.get("PYTHONPATH", ""))
    return {
        **kept,
        "CULM_TLS_DIR": str(folder / "certs" / "stage"),
        "CULM_RUN": settings.run,
        "CULM_METRICS": "",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
    }


def await_coordinator(address: Callable[[], str], state: Callable[[], str], tell: Callable[[str], None]) -> str:
    """The coordinator's address, once it listens. ``state``: what stands in the way, told whenever it changes."""
    tell(NO_LIMIT)
    told = ""
    while not (found := address()):
        if (now := state()) != told:
            tell(now)
            told = now
        time.sleep(POLL_SECONDS)
    return found

"""What runs on a machine of Ray: actors that keep a coordinator or a stage server running. They know no torch.

An actor's own process dies with its machine's raylet; the service is tied to it, and dies with it (``local.tied``).
"""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import ray

from culm.engines.local import last_lines_of
from culm.engines.ray_private import drained_at
from culm.engines.services import FAILED, StageServer, keep_coordinator, read_address, unpacked
from culm.terminal.outcome import RunFailed

NAMESPACE = "culm"
ASK_SECONDS = 20.0
POLL_SECONDS = 1.0
LINES = 10_000  # of a log that an actor hands out at most


class Coordinator:
    """Its folder has the name of the run: one that Ray starts again on the same machine finds Redis' data there."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        # No other run has this name, and nobody knows it beforehand: the folder is this run's alone.
        run = json.loads(files["settings.json"])["run"]
        self._folder = Path(tempfile.gettempdir()) / f"culm-{run}"
        unpacked(files, self._folder)
        self._stop = threading.Event()
        self._failed = ""
        threading.Thread(target=self._run, name="coordinator", daemon=True).start()

    def address(self) -> str:
        """Empty until it listens."""
        return read_address(self._folder)

    def state(self) -> str:
        return self._failed or f"running on {_machine()}"

    def lines(self) -> tuple[int, list[str]]:
        return last_lines_of(self._folder / "coordinator.log", LINES)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            keep_coordinator(self._folder, str(ray.util.get_node_ip_address()), self._stop)
        except Exception as error:
            self._failed = f"{FAILED} {error}"
            print(f"culm up: {error}", file=sys.stderr, flush=True)
            if not self._stop.is_set() and not (isinstance(error, RunFailed) and error.code == 2):
                os._exit(1)  # Ray starts the actor again


class Stage:
    """A stage server. It ends for good once its run is over; then its actor goes, too."""

    def __init__(self, files: Mapping[str, bytes], number: int, coordinator: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="culm-stage-"))
        unpacked(files, self._folder)
        self._coordinator = coordinator
        self._name = f"{_machine()}-{number}"
        self._log = self._folder / "stage.log"
        self._server = StageServer(self._folder, self._name, self._log, self._address)
        threading.Thread(target=self._run, name="stage", daemon=True).start()
        threading.Thread(target=self._watch, name="drained", daemon=True).start()

    def state(self) -> str:
        return f"{'leaving' if self._server.told else 'running on'} {_machine()} as {self._name}"

    def lines(self) -> tuple[int, list[str]]:
        return last_lines_of(self._log, LINES)

    def stop(self) -> None:
        self._server.stop()

    def _address(self) -> str:
        with suppress(ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            actor = ray.get_actor(self._coordinator, NAMESPACE)
            return str(ray.get(actor.address.remote(), timeout=ASK_SECONDS))
        return ""

    def _run(self) -> None:
        self._server.run()
        if self._server.told:
            return  # this actor waits for the end of its machine, so that Ray starts it again on another one
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(Exception):  # culm down ends it at the same time
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _watch(self) -> None:
        """Hands on that Ray drains this machine, as its autoscaler does when a cloud takes it."""
        while not self._server.told:
            with suppress(ray.exceptions.RayError, ConnectionError):
                if (deadline := drained_at(ray.get_runtime_context().get_node_id())) is not None:
                    self._server.notice(deadline - time.time() if deadline else None)
            time.sleep(POLL_SECONDS)


def _machine() -> str:
    """This machine's name, as Ray's dashboard shows it."""
    return os.uname().nodename.partition(".")[0]

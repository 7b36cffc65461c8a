"""An operator on a machine beside those of the run: what the run says, and what is asked of it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from culm.local.processes import Child
from tests.machines.container import ROOT
from tests.machines.network import Network

OPERATOR = "operator"
PATIENCE = 180.0  # seconds for anything that is waited for
POLL_SECONDS = 0.05
Event = dict[str, Any]


class Operator:
    """``tend`` is called as often as something is waited for; what it returns has ended, and fails the test."""

    def __init__(
        self, network: Network, certificates: Path, coordinator: str, folder: Path, tend: Callable[[], list[str]]
    ) -> None:
        self._network = network
        self._folder = folder
        self._tend = tend
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CULM_")},
            "CULM_COORDINATOR": coordinator,
            "CULM_TLS_DIR": str(certificates / "operator"),
            "PYTHONPATH": str(ROOT),
        }
        self._watcher: Child | None = None

    def watch(self) -> None:
        words = self._network.within(OPERATOR, sys.executable, "-m", "culm", "events", "--follow", "--json")
        self._watcher = Child.start(words, self._folder / "events.log", self._environment)

    def culm(self, *words: str) -> str:
        """What the command says; it fails unless it ends with 0."""
        command = self._network.within(OPERATOR, sys.executable, "-m", "culm", *words)
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, f"culm {' '.join(words)}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
        return done.stdout + done.stderr

    def weights_sha256(self) -> str:
        (found,) = re.findall(r"\b[0-9a-f]{64}\b", self.culm("weights", "--out", str(self._folder / "weights")))
        return str(found)

    def events(self, kind: str) -> list[Event]:
        path = self._folder / "events.log"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        told = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        once = {event["sequence"]: event for event in told}
        return [event for event in once.values() if event["kind"] == kind]

    def times(self, kind: str, node: str) -> int:
        return [event["node"] for event in self.events(kind)].count(node)

    def step(self) -> int:
        return max((int(event["step"]) for event in self.events("commit")), default=-1) + 1

    def until(self, what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            ended = self._tend()
            if self._watcher is not None and self._watcher.returncode is not None:
                self.watch()  # a coordinator that ends takes the stream along; the next one has all events
            assert not ended, f"waiting for {what}: {ended} ended"
            assert time.monotonic() < deadline, f"waiting for {what}: not within {patience:g} s"
            time.sleep(POLL_SECONDS)

    def until_it_goes_on(self, steps: int = 5) -> None:
        """Some steps more than were committed when this was called."""
        before = self.step()
        self.until(f"step {before + steps}", lambda: self.step() >= before + steps)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.stop(0.0)

"""The example that is trained on every engine: its calm weights, and what the command line says of a cluster."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
JOB = "examples/stdlib_gpt.toml"
STEPS = 300  # long enough for a machine to be taken, and to come back
OVERRIDES = (
    f"job.steps={STEPS}",
    "model.args.depth=6",
    "model.args.width=96",
    "model.args.context=64",
    "data.args.context=64",
)
LONGEST = 900.0  # seconds until a run that waits for nothing is over, on a machine that does other things as well


class Silent(AssertionError):
    """No coordinator answers: one that is busy may have given way to its next one for a moment."""


def culm(*words: str, environment: Mapping[str, str], folder: Path = ROOT) -> str:
    """What the command prints, run in a folder. Raises Silent, or AssertionError with its stderr where it fails."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    full = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "culm", *words]
    done = subprocess.run(command, cwd=folder, env=full, capture_output=True, text=True, timeout=LONGEST)
    if "no coordinator answers" in done.stderr:
        raise Silent(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


def changed() -> list[str]:
    return [word for change in OVERRIDES for word in ("--set", change)]


def calm_weights(environment: Mapping[str, str]) -> str:
    """The sha256 of a run on this machine that nobody disturbs."""
    told = culm("run", JOB, *changed(), "--json", environment=environment)
    return str(json.loads(told.strip().splitlines()[-1])["weights_sha256"])


class Run:
    """A run that ``culm up`` has started, as its coordinator tells of it."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._environment = environment

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._ask("status", "--json"))
        return told

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._ask("events", "--json", "--kind", kind).splitlines()]

    def weights(self) -> str:
        return str(json.loads(self._ask("weights", "--json"))["weights_sha256"])

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Asks until it holds. AssertionError where that takes too long."""
        deadline = time.monotonic() + LONGEST
        while not self._now(holds):
            assert time.monotonic() < deadline, f"{what}: not within {LONGEST:g} s"
            time.sleep(0.5)

    @staticmethod
    def _now(holds: Callable[[], object]) -> bool:
        try:
            return bool(holds())
        except Silent:
            return False

    def names(self) -> set[str]:
        """Of the nodes that are there."""
        return {node["id"] for node in self.status()["nodes"]}

    def _ask(self, command: str, *words: str) -> str:
        return culm(command, "--cluster", self._name, *words, environment=self._environment)

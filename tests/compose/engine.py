"""A compose project on whatever engine ``docker`` reaches: its containers, what its coordinator says, its weights."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMAGES = ("culm/coordinator", "culm/stage", "culm/ui", "redis:7-alpine")
HANGS = 600.0  # seconds after which a run that waits for nothing counts as hung
# Hashes a checkpoint's export as culm.weights hashes what nodes hold.
SAVED_WEIGHTS = """
culm checkpoint export file:///checkpoints --step $1 --out /tmp/model.safetensors >&2
python3 -c '
from safetensors.torch import load_file
from culm.pipeline.checkpoints.digest import weights_sha256
layers = {}
for key, tensor in load_file("/tmp/model.safetensors").items():
    index, _, name = key.partition(".")
    layers.setdefault(int(index), {})[name] = tensor
print(weights_sha256(layers.items()))'
"""


class EngineError(Exception):
    """The command failed; its words are what docker said."""


def docker(*words: str, environment: dict[str, str] | None = None) -> str:
    """Raises EngineError; FileNotFoundError without a ``docker``."""
    done = subprocess.run(
        ["docker", *words], capture_output=True, text=True, timeout=1800.0, env={**os.environ, **(environment or {})}
    )
    if done.returncode != 0:
        raise EngineError(f"docker {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Project:
    """One cluster. ``files`` come after docker-compose.yml, which they change."""

    name: str
    files: Sequence[Path] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def compose(self, *words: str) -> str:
        files = [w for path in (ROOT / "docker-compose.yml", *self.files) for w in ("-f", str(path))]
        return docker("compose", "--project-name", self.name, *files, *words, environment=self.environment)

    def begin(self, *services: str) -> None:
        """Starts a fresh cluster: what an interrupted test left behind holds another run, and goes first."""
        self.down()
        self.up(*services)

    def up(self, *services: str) -> None:
        self.compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "300", *services)

    def down(self) -> None:
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "1", "--remove-orphans")

    def containers(self, service: str) -> list[str]:
        """Their names, also of those that are stopped."""
        return sorted(self.compose("ps", "--all", "--format", "{{.Name}}", service).split())

    def running(self, service: str) -> list[str]:
        """The names of those that are neither stopped nor paused."""
        return sorted(self.compose("ps", "--status", "running", "--format", "{{.Name}}", service).split())

    def ended(self, service: str) -> list[str]:
        """Containers that ended with 0: they were told to, or had nothing more to do."""
        told = self.compose("ps", "--all", "--format", "{{.Name}} {{.State}} {{.ExitCode}}", service)
        return sorted(line.split()[0] for line in told.splitlines() if line.endswith(" exited 0"))

    def status(self) -> dict[str, Any]:
        """Raises EngineError while no coordinator answers."""
        told: dict[str, Any] = json.loads(self.compose("exec", "-T", "coordinator", "culm", "status", "--json"))
        return told

    def checkpoints(self) -> list[int]:
        """The steps of those that are whole."""
        ls = ("exec", "-T", "coordinator", "culm", "checkpoint", "ls", "file:///checkpoints", "--json")
        return [found["step"] for found in json.loads(self.compose(*ls)) if found["whole"]]

    def events(self) -> list[dict[str, Any]]:
        told = self.compose("exec", "-T", "coordinator", "culm", "events", "--json")
        return [json.loads(line) for line in told.split("\n") if line]

    def until(self, what: Callable[[dict[str, Any]], bool], seconds: float = HANGS) -> dict[str, Any]:
        """The first status that is so. A coordinator that is away is asked again."""
        deadline = time.monotonic() + seconds
        told: dict[str, Any] | EngineError
        while True:
            try:
                told = self.status()
                if what(told):
                    return told
            except EngineError as error:
                told = error
            assert time.monotonic() < deadline, f"still {told}"
            time.sleep(0.5)

    def weights(self) -> str:
        """The sha256 of a finished run's weights, from its nodes."""
        told: dict[str, str] = json.loads(self._run("stage", "weights", "--json"))
        return told["weights_sha256"]

    def saved_weights(self, step: int) -> str:
        """The same of the checkpoint of that step, once it is whole. It stays when the nodes have ended."""
        deadline = time.monotonic() + HANGS
        while step not in self.checkpoints():
            assert time.monotonic() < deadline, f"no checkpoint of step {step}: {self.checkpoints()}"
            time.sleep(0.5)
        return self._run("--entrypoint", "sh", "stage", "-euc", SAVED_WEIGHTS, "sh", str(step))

    def plain_weights(self, job: str, changes: Sequence[str]) -> str:
        """Of a plain loop in the same image: also the text that an example learns is that image's own."""
        code = "from culm.oracle.plain_loop import run_plain as p; from culm.pipeline.job import load_job as l; "
        code += f"print(p(l({job!r}, {list(changes)!r})).sha256)"
        return self._run("--entrypoint", "python3", "stage", "-c", code)

    def _run(self, *words: str) -> str:
        """The last line that a container of its own says."""
        return self.compose("run", "--rm", "--no-deps", "--no-TTY", *words).strip().split("\n")[-1]

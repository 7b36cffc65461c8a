"""A run over a wide network: the coordinator with its Redis, and every node, on a host of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from culm.local.processes import Child
from culm.local.redis_binary import find_redis_server
from culm.pipeline.job import Job, job_to_toml
from tests.wan.network import Network

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds for anything that is waited for
POLL_SECONDS = 0.05
SILENCE = 4.0  # on a busy machine a node may be slow to speak
LOG_LINES = 30  # of each process, in a failure
COORDINATOR = "coordinator"
Event = dict[str, Any]


class WideCluster:
    """Coordinator and nodes as the command line starts them. Left, every process of it is gone."""

    def __init__(self, network: Network, job: Job, nodes: list[str], folder: Path) -> None:
        self.network = network
        self.nodes = nodes
        self._job = job
        self._folder = folder
        self._address = f"{network.address(COORDINATOR)}:7070"
        self._environment = {
            **os.environ,
            "CULM_INSECURE": "1",  # there is nobody else in these namespaces
            "CULM_NOTICES": "none",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self._children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def _start_all(self) -> None:
        job = self._folder / "job.toml"
        job.write_text(job_to_toml(self._job))
        redis = [str(find_redis_server()), "--bind", "127.0.0.1", "--port", "6379", "--save", ""]
        self._start("redis", COORDINATOR, *redis, "--dir", str(self._folder))
        words = ["--job", str(job), "--listen", self._address, "--name", "wan", "--nodes", str(len(self.nodes))]
        words += ["--redis", "redis://127.0.0.1:6379/0", "--patience", str(SILENCE)]
        self._culm(COORDINATOR, COORDINATOR, "coordinator", *words)
        self._await("a coordinator", lambda: "listening on" in self.log(COORDINATOR))
        self._culm("events", COORDINATOR, "events", "--coordinator", self._address, "--follow", "--json")
        for node in self.nodes:
            listen = f"{self.network.address(node)}:7071"
            self._culm(node, node, "stage", "--coordinator", self._address, "--listen", listen, "--name", node)

    def _culm(self, name: str, host: str, *words: str) -> None:
        self._start(name, host, sys.executable, "-m", "culm", *words)

    def _start(self, name: str, host: str, *words: str) -> None:
        log = self._folder / f"{name}.log"
        self._children[name] = Child.start(self.network.within(host, *words), log, self._environment)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        own = {COORDINATOR, *self.nodes} & self._children.keys()
        for name in own:
            self._children[name].interrupt()
        for name in own:
            self._children[name].stop()
        for child in self._children.values():  # Redis and the watcher have nothing to put in order
            child.stop(0.0)
        self._children.clear()

    # ---- what is seen of it -----------------------------------------------------------------------------------------

    def log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def events(self) -> list[Event]:
        """All so far. The last line may be half written."""
        lines = self.log("events").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def of_kind(self, kind: str) -> list[Event]:
        return [event for event in self.events() if event["kind"] == kind]

    def lost(self) -> list[str]:
        """The nodes that were declared lost since the run began, in order."""
        begun = next((event["sequence"] for event in self.of_kind("plan")), 0)
        return [event["node"] for event in self.of_kind("lost") if event["sequence"] > begun]

    def times_joined(self, node: str) -> int:
        return [event["node"] for event in self.of_kind("joined")].count(node)

    def step(self) -> int:
        return max((int(event["step"]) for event in self.of_kind("commit")), default=-1) + 1

    def status(self) -> dict[str, Any]:
        """What ``culm status`` tells on the coordinator's own host."""
        words = self.network.within(COORDINATOR, sys.executable, "-m", "culm", "status", "--json")
        words += ["--coordinator", self._address]
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=True, timeout=60)
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def loss_hex(self) -> list[str]:
        """By step; a rollback's later commits replace the earlier ones."""
        losses = {int(event["step"]): event["loss_hex"] for event in self.of_kind("commit")}
        return [losses[step] for step in sorted(losses)]

    def weights_sha256(self) -> str:
        """Of the owners' final weights, gathered on the coordinator's host."""
        words = self.network.within(COORDINATOR, sys.executable, "-m", "tests.wan.weights", self._address)
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout.strip()

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits for something to be seen. Fails with the story so far when it is not, or when a process ended."""
        self._await(what, condition)

    def until_step(self, step: int) -> None:
        self._await(f"step {step}", lambda: self.step() >= step)

    def until_done(self) -> None:
        self._await("the last step", lambda: bool(self.of_kind("done")))

    def stays(self, seconds: float) -> None:
        """Lets a disturbance last."""
        over = time.monotonic() + seconds
        self._await("time", lambda: time.monotonic() >= over, seconds + PATIENCE)

    def _await(self, what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            ended = [name for name, child in self._children.items() if child.returncode is not None]
            if ended or time.monotonic() > deadline:
                why = f"{ended} ended" if ended else f"not within {patience:g} s"
                raise AssertionError(f"waiting for {what}: {why}\n{self.story()}")
            time.sleep(POLL_SECONDS)

    def story(self) -> str:
        """Events without commits, and the end of every log."""
        told = [e for e in self.events() if e["kind"] != "commit"]
        lines = [f"{e['time']:.3f} step {e['step']} {e['kind']}: {e['text']}" for e in told]
        for name in self._children:
            if name != "events":
                lines += [f"--- {name}", *self.log(name).splitlines()[-LOG_LINES:]]
        return "\n".join([f"step {self.step()}", *lines])

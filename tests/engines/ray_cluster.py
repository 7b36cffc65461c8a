"""A real Ray on this machine: a head, and several raylets as machines of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from culm.local.ports import free_port

START_SECONDS = 120.0
MEMORY = str(80 * 1024 * 1024)  # of a raylet's object store: nothing is in it


class RayCluster:
    """``machines``: the raylet of each, by the number of its start; the head's is not among them."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        # Of everything that runs here, and so what it is known by.
        self.environment = {"RAY_TMPDIR": str(folder), "RAY_memory_monitor_refresh_ms": "0"}
        self.machines: list[psutil.Process] = []

    def start_head(self) -> None:
        port = self.address.rpartition(":")[2]
        self._start("--head", "--port", port, "--include-dashboard=false", "--num-cpus", "1")

    def start_machine(self) -> None:
        """With room for one stage server."""
        before = self._raylets()
        self._start("--address", self.address, "--num-cpus", "2")
        self.machines.extend(self._raylets() - before)

    def lose_machine(self, number: int) -> None:
        """kill -9; what the raylet ran dies with it."""
        self.machines[number].kill()

    def drain(self, number: int, seconds: int) -> None:
        """As Ray's autoscaler does once a cloud says that it takes the machine."""
        node = next(word for word in self.machines[number].cmdline() if word.startswith("--node_id="))
        why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
        words = ["--address", self.address, "--node-id", node.partition("=")[2], *why]
        self.ray("drain-node", *words, "--deadline-remaining-seconds", str(seconds))

    def ray(self, *words: str) -> str:
        environment = {**os.environ, **self.environment}
        # ``ray`` is the script beside this interpreter, which may not be on the path.
        command = [sys.executable, "-m", "ray.scripts.scripts", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
        assert done.returncode == 0, f"ray {' '.join(words)}: {done.stderr or done.stdout}"
        return done.stdout

    def stop(self) -> None:
        for process in self._running():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _start(self, *words: str) -> None:
        here = ["--disable-usage-stats", "--node-ip-address=127.0.0.1", "--object-store-memory", MEMORY]
        self.ray("start", *words, *here)

    def _raylets(self) -> set[psutil.Process]:
        return {process for process in self._running() if process.name() == "raylet"}

    def _running(self) -> set[psutil.Process]:
        """What ``ray start`` leaves behind is nobody's child."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("RAY_TMPDIR") == self.environment["RAY_TMPDIR"]:
                    found.add(process)
        return found - {psutil.Process()}


@contextmanager
def ray_cluster(folder: Path, machines: int) -> Iterator[RayCluster]:
    cluster = RayCluster(folder)
    try:
        cluster.start_head()
        for _ in range(machines):
            cluster.start_machine()
        yield cluster
    finally:
        cluster.stop()

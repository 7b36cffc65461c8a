"""The local launcher: an embedded Redis, a coordinator and nodes as real processes on loopback."""

import os
import re
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from culm import nursery
from culm.kills import Kill
from culm.outcome import RunFailed
from culm.processes import Child
from culm.redis_server import EmbeddedRedis
from pipeline.errors import JobError
from pipeline.job import Job, job_to_toml

START_SECONDS = 30.0
USUAL_ADDRESS = "127.0.0.1:7070,127.0.0.1:0"  # where `culm status` asks by itself, or any port if that is taken
LISTENING = re.compile(rb"^culm coordinator listening on (\S+)$", re.MULTILINE)
RESTARTS = 5
COORDINATOR_FAILURES = 3  # in a row, that are no kill


class LocalCluster:
    """Everything of one run; leaving the context ends every process of it."""

    def __init__(
        self,
        job: Job,
        job_folder: Path,
        nodes: int,
        kills: Iterable[Kill] = (),
        address: str = "",
        respawn: bool = True,
        folder: Path | None = None,
        heartbeat_timeout: float = 2.0,
        resume: str = "",
        environments: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        self.job = job
        self.names = [f"n{i}" for i in range(nodes)]
        self.address = address  # the first of these, separated by commas, that is free; empty: any port
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.folder = folder or Path("runs") / f"{job.job.name}-{stamp}-{os.getpid()}"
        self.deaths: list[tuple[str, float]] = []  # (node, unix time)
        self._wanted = nodes
        self._kills = list(kills)
        self._respawn = respawn
        self._heartbeat_timeout = heartbeat_timeout
        self._resume = resume
        self._environments = environments  # what single processes have beside the common one, by name
        self._children: dict[str, Child] = {}
        self._environment = self._make_environment(job_folder)
        self._redis: EmbeddedRedis | None = None
        self._coordinator_failures = 0

    def __enter__(self) -> Self:
        if self._wanted:
            nursery.warm_up()  # while the others start
        self.folder.mkdir(parents=True)
        (self.folder / "job.toml").write_text(job_to_toml(self.job))
        (self.folder / "redis").mkdir()
        try:
            self._redis = EmbeddedRedis(self.folder / "redis", durable=True)
            self._redis.start()
            self._start_coordinator(self.address.split(",") if self.address else ["127.0.0.1:0"])
            for name in self.names:
                self._start_stage(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process: first asked, then made to."""
        for child in self._children.values():
            child.interrupt()
        for child in self._children.values():
            child.stop()
        self._children.clear()
        if self._redis is not None:
            self._redis.stop()
            self._redis = None

    def pids(self) -> dict[str, int]:
        """Process ids by name, the coordinator and redis among them."""
        pids = {name: child.pid for name, child in self._children.items()}
        return {**pids, "redis": self._redis.pid} if self._redis is not None else pids

    def add(self, name: str) -> None:
        """Starts another node."""
        self.names.append(name)
        self._start_stage(name)

    def kill(self, name: str) -> None:
        """kill -9, as a machine that is taken away."""
        child = self._children.get(name)
        if child is not None:
            child.kill()

    def check(self) -> None:
        """Starts again what was killed, a node as one that holds nothing. Raises RunFailed."""
        if self._redis is not None and not self._redis.alive:
            self._redis.restart()
        for name, child in list(self._children.items()):
            code = child.returncode
            if code is None:
                continue
            if name == "coordinator":
                self._restart_coordinator(child, code)
                continue
            if code == 0:
                del self._children[name]  # drained
                continue
            if code > 0:
                raise RunFailed(child.last_line() if code == 2 else f"{name} ended: {child.last_line()}", code or 1)
            self.deaths.append((name, child.died_at or time.time()))
            del self._children[name]
            if self._respawn:
                self._start_stage(name)

    def _start_coordinator(self, addresses: list[str]) -> None:
        """At the first of the addresses that is free."""
        for address in addresses:
            log = self.folder / "coordinator.log"
            before = log.stat().st_size if log.exists() else 0
            child = self._start("coordinator", self._coordinator_words(address))
            deadline = time.monotonic() + START_SECONDS
            while (found := LISTENING.search(log.read_bytes()[before:])) is None and not child.wait(0.02):
                if time.monotonic() > deadline:
                    raise RunFailed(f"the coordinator does not come up; see {child.log}")
            if found is not None:
                self.address = found[1].decode()
                return
        text = child.last_line().replace("--listen", "--coordinator-address")
        raise RunFailed(text.removeprefix("culm coordinator: "), 2)

    def _restart_coordinator(self, child: Child, code: int) -> None:
        """One that was killed, or had to step down, goes on from what it persisted."""
        self._coordinator_failures = 0 if code < 0 else self._coordinator_failures + 1
        if code == 2 or self._coordinator_failures > COORDINATOR_FAILURES:
            raise RunFailed(child.last_line(), code)
        self._start_coordinator([self.address] * RESTARTS)  # the port may be taken for a moment

    def _coordinator_words(self, address: str) -> list[str]:
        assert self._redis is not None
        words = ["coordinator", "--job", str(self.folder / "job.toml"), "--listen", address, "--name", "local"]
        words += ["--heartbeat-timeout", str(self._heartbeat_timeout), "--resume", self._resume]
        return [*words, "--redis", self._redis.url, "--nodes", str(self._wanted), "--allow-kill"]

    def _start_stage(self, name: str) -> None:
        words = ["stage", "--coordinator", self.address, "--name", name]
        done = sum(dead == name for dead, _ in self.deaths)
        own = sorted((k for k in self._kills if k.node == name), key=lambda k: k.step)
        for kill in own[done:]:
            words += ["--kill-at", kill.at]
        self._start(name, words)

    def _start(self, name: str, words: list[str]) -> Child:
        log = self.folder / f"{name}.log"
        environment = {**self._environment, **self._environments.get(name, {})}
        if words[0] == "stage" and self.job.job.device == "cpu":  # CUDA outlives no fork
            child = Child.fork(words, log, environment)
        else:
            child = Child.start([sys.executable, "-m", "culm", *words], log, environment)
        self._children[name] = child
        return child

    def _make_environment(self, job_folder: Path) -> dict[str, str]:
        threads = str(self.job.job.threads)
        path = [os.getcwd(), str(job_folder.resolve()), os.environ.get("PYTHONPATH", "")]
        return {
            # Machines that nobody sells, at prices that are made up: so that there is money to look at.
            "CULM_PROVIDER": "example",
            "CULM_INSTANCE_TYPE": "local",
            "CULM_MARKET": "spot",
            "CULM_NOTICES": "none",  # this machine's own, if it is in a cloud, are for whoever started the run
            **os.environ,
            # A port may pass from one run to the next while nodes of the first are still ending.
            "CULM_RUN": f"{self.folder.name}-{uuid.uuid4().hex[:8]}",
            "CULM_METRICS": "",  # one port cannot serve every process here
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(p for p in path if p),
            "PYTHONUNBUFFERED": "1",
        }


def job_folder_of(path: str | Path) -> Path:
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise JobError("its folder does not exist", str(path), "give the path of a JOB.toml")
    return folder

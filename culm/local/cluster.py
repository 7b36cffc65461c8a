"""The local launcher: an embedded Redis, a coordinator and nodes as real processes on loopback."""

import logging
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from culm.local import nursery
from culm.local.cards import card_for, cards_of
from culm.local.kills import Kill
from culm.local.processes import STOP_SECONDS, Child
from culm.local.redis_binary import RedisUnavailable
from culm.local.redis_server import EmbeddedRedis
from culm.local.run_folder import RUNS, not_writable
from culm.pipeline import default_ports, private
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, job_to_toml
from culm.pipeline.patience import VARIABLE, from_environment
from culm.pipeline.text import LONGEST_NAME
from culm.terminal.outcome import RunFailed

launcher_log = logging.getLogger("culm.cluster")

START_SECONDS = 120.0  # on a machine where much else begins; one that ends is seen at once
TRACKED_STOP_SECONDS = 15.0  # for a coordinator whose trackers have numbers to write
USUAL_ADDRESS = f"{default_ports.COORDINATOR},127.0.0.1:0"  # where `culm status` asks; any port if that is taken
LISTENING = re.compile(rb"^culm coordinator listening on (\S+)$", re.MULTILINE)
# How a process ended says what to do. Code 0: a node was drained, or its run is done. SIGKILL and other signals: the
# machine was taken, as far as the run can see, so the process is started again. A code above 0 or a crash: something is
# wrong there, and it is tried again a few times in a row. What ends a process again and again ends it within seconds
# or minutes: while it starts, or in its first steps. So one that ran for RAN_WELL_SECONDS ends the row, and a run of
# weeks may lose a process now and then. The coordinator knows whether the job is at fault (rule 16).
RESTARTS = 5  # attempts to listen at the old address again: its port may be taken for a moment
RAN_WELL_SECONDS = 600.0
# A tensor worker is billed as a function of AWS Lambda that has one processor
# (https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html, November 2026).
WORKER_MEMORY = str(1769 << 20)
COORDINATOR_FAILURES = 3  # ends with a code above 0, in a row, after which the run fails
CRASHES = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
)  # signals of the process's own making
NODE_FAILURES = 3  # times in a row that a node may end by itself and is started again


class LocalCluster:
    """Everything of one run; leaving the context ends every process of it."""

    def __init__(
        self,
        job: Job,
        job_folder: Path | None,
        nodes: int,
        kills: Iterable[Kill] = (),
        address: str = "",
        respawn: bool = True,
        folder: Path | None = None,
        patience: float | None = None,
        resume: str = "",
        allow: str = "",
        environments: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
        waits_for: int | None = None,
        has_led: bool = False,
        stays_without_nodes: bool = False,
    ) -> None:
        """``job_folder``: where nodes look for modules, after the current folder; None: where this process does.

        ``nodes``: how many are started here. ``waits_for``: how many training waits for, these by default.
        ``has_led``: a coordinator of this run has listened before, started by another one of these.
        ``stays_without_nodes``: the end of the last node does not end the cluster, which may be given others.
        """
        self.job = job
        self.names = [f"n{i}" for i in range(nodes)]
        self.address = address  # several, separated by commas: the first that is free; empty: any free port
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.folder = folder or RUNS / f"{job.job.name}-{stamp}-{os.getpid()}"
        self.deaths: list[tuple[str, float]] = []  # (node, unix time)
        self.gone: dict[str, str] = {}  # nodes and workers that are not started again by themselves, and why
        self._wanted = nodes
        self._workers = [f"w{i}" for i in range(job.graph.first_workers if job.graph is not None else 0)]
        self._workers_started = len(self._workers)
        self._stays_without_nodes = stays_without_nodes
        self._waits_for = nodes if waits_for is None else waits_for
        self._kills = list(kills)
        self._respawn = respawn
        self._failed: dict[str, int] = {}  # how often in a row a node has ended by itself, by name
        self._resume = resume
        self._allow = allow
        self._environments = environments  # by name: variables of one process, beside the common ones
        self._children: dict[str, Child] = {}
        self._environment = self._make_environment(job_folder, patience)
        self._cards = cards_of(self._environment) if job.job.device == "cuda" else []
        self._redis: EmbeddedRedis | None = None
        self._without_redis = ""  # why it did not start again at the last attempt
        self._coordinator_failures = 0
        self._has_led = has_led  # whether a coordinator of this run has listened

    def __enter__(self) -> Self:
        if self._wanted:
            nursery.warm_up()  # while the others start
        try:
            private.make_folder(self.folder)
            private.write_text(self.folder / "job.toml", job_to_toml(self.job))
            private.make_folder(self.folder / "redis")
        except OSError as error:
            raise not_writable(self.folder, error.strerror or str(error)) from error
        try:
            self._redis = EmbeddedRedis(self.folder / "redis", durable=True)
            self._redis.start()
            self._start_coordinator(self.address.split(",") if self.address else ["127.0.0.1:0"])
            for name in (*self.names, *self._workers):
                self._start_node(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process: asks them first, then kills those that stay.

        The coordinator ends first: it would take nodes that end for lost ones, and go back from weights that nobody
        but this process has fetched.
        """
        tracked = self.job.track is not None  # its coordinator lets trackers write what they were told last
        coordinator = self._children.pop("coordinator", None)
        if coordinator is not None:
            coordinator.interrupt()
            coordinator.stop(TRACKED_STOP_SECONDS if tracked else STOP_SECONDS)
        for child in self._children.values():
            child.interrupt()
        for child in self._children.values():
            child.stop(STOP_SECONDS)
        self._children.clear()
        if self._redis is not None:
            self._redis.stop()
            self._redis = None

    def pids(self) -> dict[str, int]:
        """Process ids by name, the coordinator and redis among them."""
        pids = {name: child.pid for name, child in self._children.items()}
        return {**pids, "redis": self._redis.pid} if self._redis is not None and self._redis.alive else pids

    def alive(self, name: str) -> bool:
        """Whether the process of this name runs."""
        child = self._children.get(name)
        return child is not None and child.returncode is None

    @property
    def redis_url(self) -> str:
        """Of the embedded Redis, its password included."""
        assert self._redis is not None
        return self._redis.url

    def add(self, name: str) -> None:
        """Starts another node."""
        self.names.append(name)
        self._start_stage(name)

    def add_all(self, further: int) -> None:
        """Starts those nodes and tensor workers that are not started again by themselves, and so many other nodes."""
        for name in list(self.gone):
            self._failed.pop(name, None)
            self._start_node(name)
            del self.gone[name]
        for _ in range(further):
            self.add(f"n{len(self.names)}")

    def want_workers(self, count: int) -> None:
        """Starts tensor workers, or lets the newest go, until so many are there."""
        while len(self._workers) > count:
            name = self._workers.pop()
            self.gone.pop(name, None)
            if name in self._children:
                self._children[name].interrupt()
        while len(self._workers) < count:
            name = f"w{self._workers_started}"
            self._workers_started += 1
            self._workers.append(name)
            self._start_node(name)

    def kill(self, name: str) -> None:
        """kill -9, as a machine that is taken away."""
        child = self._children.get(name)
        if child is not None:
            child.kill()

    def check(self) -> None:
        """Starts again what was killed, a node as one that holds nothing. Raises RunFailed once no node is left."""
        if self._redis is not None and not self._redis.alive:
            self._restart_redis(self._redis)
        for name, child in list(self._children.items()):
            code = child.returncode
            if code is None:
                continue
            if name == "coordinator":
                self._restart_coordinator(child, code)
                continue
            if name not in self._workers and name not in self.names:  # a tensor worker that was let go
                del self._children[name]
                continue
            if code == 0:
                del self._children[name]
                self.gone[name] = "it was drained, or its run is over"
                continue
            if code > 0 or -code in CRASHES:
                self._ended_by_itself(name, child, code)
                continue
            self.deaths.append((name, child.died_at or time.time()))
            del self._children[name]
            if self._respawn:
                self._start_node(name)

    def _restart_redis(self, redis: EmbeddedRedis) -> None:
        """Nothing is ended where that fails: the coordinator and its nodes go on without Redis for a while."""
        try:
            redis.restart()
            self._without_redis = ""
        except (RedisUnavailable, OSError) as error:
            if str(error) != self._without_redis:
                launcher_log.warning("Redis does not start, and is tried again: %s", error)
            self._without_redis = str(error)

    @property
    def has_nodes(self) -> bool:
        """Whether a node's process runs, or is to be started again."""
        return any(name in self._children for name in self.names)

    def _ended_by_itself(self, name: str, child: Child, code: int) -> None:
        """Starts a node again that ended by itself, a few times. Raises RunFailed once no node is left."""
        del self._children[name]
        self._failed[name] = in_a_row(self._failed.get(name, 0), child.ran)
        if self._respawn and self._failed[name] <= NODE_FAILURES:
            self._start_node(name)
            return
        if code < 0:  # a crash writes no last line
            why = f"{name} was ended by {signal.Signals(-code).name} {self._failed[name]} times: see {child.log}"
        else:
            why = child.last_line() if code == 2 else f"{name} ended: {child.last_line()}"
        self.gone[name] = why
        if not self.has_nodes and not self._stays_without_nodes:
            raise RunFailed(why, max(code, 1))

    def _start_coordinator(self, addresses: list[str]) -> None:
        """At the first of the addresses that is free. Raises RunFailed, with the reason of one that does not begin."""
        for address in addresses:
            log = self.folder / "coordinator.log"
            before = log.stat().st_size if log.exists() else 0
            # Of one that led before nodes may know more than Redis does (rule 15). One whose port is taken has not led.
            new = [] if self._has_led else ["--new-run"]
            child = self._start("coordinator", [*self._coordinator_words(address), *new])
            deadline = time.monotonic() + START_SECONDS
            while (found := LISTENING.search(log.read_bytes()[before:])) is None and not child.wait(0.02):
                if time.monotonic() > deadline:
                    raise RunFailed(f"the coordinator does not listen after {START_SECONDS:g} s; see {child.log}")
            if found is not None:
                self.address = found[1].decode()
                self._has_led = True
                return
            text = child.last_line().removeprefix("culm coordinator: ")
            if (child.returncode == 2 or not self._has_led) and not text.startswith("cannot listen on"):
                break  # at another address it would be refused as well
        raise RunFailed(text.replace("--listen", "--coordinator-address"), 2)

    def _restart_coordinator(self, child: Child, code: int) -> None:
        """After a kill, a stop or a step down: the next coordinator goes on from what this one persisted."""
        self._coordinator_failures = in_a_row(self._coordinator_failures, child.ran) if code > 0 else 0
        if code == 2 or self._coordinator_failures > COORDINATOR_FAILURES:
            raise RunFailed(child.last_line(), code)
        # Processes of this machine are told the address once. Nodes of other machines look for it, and find a new one.
        elsewhere = [] if self.names or self._workers else [f"{self.address.rpartition(':')[0]}:0"]
        self._start_coordinator([self.address] * RESTARTS + elsewhere)

    def _coordinator_words(self, address: str) -> list[str]:
        assert self._redis is not None
        words = ["coordinator", "--job", str(self.folder / "job.toml"), "--listen", address, "--name", "local"]
        words += ["--resume", self._resume, "--allow", self._allow]
        return [*words, "--nodes", str(self._waits_for), "--allow-kill"]

    def _redis_url_file(self) -> Path:
        """The file with the URL, for this user alone. A command line is for everybody on the machine to read."""
        assert self._redis is not None
        path = self.folder / "redis" / "url"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(self.redis_url)
        return path.absolute()

    def _start_node(self, name: str) -> None:
        """A node, or a tensor worker, as a process that holds nothing."""
        if name in self._workers:
            self._start(
                name, ["tensor-worker", "--coordinator", self.address, "--name", name, "--memory", WORKER_MEMORY]
            )
        else:
            self._start_stage(name)

    def _start_stage(self, name: str) -> None:
        words = ["stage", "--coordinator", self.address, "--name", name]
        done = sum(dead == name for dead, _ in self.deaths)
        own = sorted((k for k in self._kills if k.node == name), key=lambda k: k.step)
        for kill in own[done:]:
            words += ["--kill-at", kill.at]
        self._start(name, words)

    def _start(self, name: str, words: list[str]) -> Child:
        log = self.folder / f"{name}.log"
        card = card_for(self.names.index(name), self._cards) if name in self.names else {}
        environment = {**self._environment, **card, **self._environments.get(name, {})}
        if name == "coordinator":
            environment |= {"CULM_REDIS_URL": "", "CULM_REDIS_URL_FILE": str(self._redis_url_file())}
        if words[0] == "stage" and self.job.job.device == "cpu":  # CUDA does not survive a fork
            child = Child.fork(words, log, environment)
        else:
            child = Child.start([sys.executable, "-m", "culm", *words], log, environment)
        self._children[name] = child
        return child

    def _make_environment(self, job_folder: Path | None, patience: float | None) -> dict[str, str]:
        threads = str(self.job.job.threads)
        path = [os.getcwd(), str(job_folder.resolve())] if job_folder is not None else map(os.path.abspath, sys.path)
        return {
            # Made-up machines at made-up prices, so that costs have something to show.
            "CULM_PROVIDER": "example",
            "CULM_INSTANCE_TYPE": "local",
            "CULM_MARKET": "spot",
            "CULM_NOTICES": "none",  # a notice to this machine is for its user, not for each of these nodes
            **os.environ,
            # A name of its own for each run: while the nodes of one run end, the next may listen at the same port.
            "CULM_RUN": f"{self.folder.name[: LONGEST_NAME - 9]}-{uuid.uuid4().hex[:8]}",
            VARIABLE: str(patience or from_environment() or self.job.resilience.patience),
            # The processes cannot all listen at one port, nor be reached there.
            "CULM_METRICS": "",
            "CULM_LISTEN": "",
            "CULM_ADVERTISE": "",
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(p for p in (*path, os.environ.get("PYTHONPATH", "")) if p),
            "PYTHONSAFEPATH": "" if job_folder is not None else "1",  # whether the current folder comes before these
            "PYTHONUNBUFFERED": "1",
        }


def in_a_row(before: int, ran: float) -> int:
    """How often a process has ended by itself, if it did so ``before`` times and now after ``ran`` seconds."""
    return 1 if ran >= RAN_WELL_SECONDS else before + 1


def job_folder_of(path: str | Path) -> Path:
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise JobError("the job file's folder does not exist", str(path), "give the path of a JOB.toml")
    return folder

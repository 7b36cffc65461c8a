"""Epochs of training on a graph in virtual time: chunks pass through their tasks, on servers and with workers."""

# Who waits for whom. A chunk runs the tasks of an epoch one after the other. It begins epoch e once the commit of epoch
# e - 1 - S is there, S being the staleness; so no chunk is more than S epochs ahead of another one. Where a task awaits
# its neighbours' values, it takes those of epoch e - S: with S = 0 it waits for all neighbours of this very epoch, with
# S = 1 only for those that are a whole epoch behind. The first epoch has nothing older to take, and is synchronous.
# When all chunks have ended an epoch it is committed, some milliseconds later. Of tasks that queue, those of older
# epochs go first.
#
#     place      who does it                             how long
#     graph      a core of the chunk's server            adds / its rate
#     network    the server's way out                    bytes of ghosts / its rate
#     tensor     a core, or a worker: called (latency),  bytes in, operations, bytes out, as below
#                runs, and is billed from then on
#
# A worker's bytes pass the server's network too: in goes over its way out, back over its way in, one chunk at a time. A
# worker whose own network is slower than the server's needs the difference on top, while others have the server's.
# Servers are alike and their chunks of much the same size, so a few of them stand for all (``simulated``): bytes and
# money are those of all.

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from culm.pipeline.neighbours import Neighbours
from culm.pipeline.tuning import Limits, Tuning, Wanted, Window, tune
from culm.simulator.graphs.epoch_work import Task
from culm.simulator.graphs.hardware import Server, TensorWorker
from culm.simulator.graphs.pools import Clock, Pool

Then = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """``workers``: of each server; None: its cores do the tensor work. ``limits``: their number is tuned."""

    server: Server
    servers: int
    worker: TensorWorker | None = None
    workers: int = 0
    limits: Limits | None = None

    def __post_init__(self) -> None:
        assert (self.worker is None) == (self.workers == 0), "workers and their kind belong together"


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """What was seen. Seconds and dollars are of an epoch; workers are of all servers."""

    seconds: float
    dollars: float
    server_dollars: float
    workers: int
    busy_workers: float
    busy_cores: float  # share of their time
    calls: float
    commits: Sequence[float]
    decisions: Sequence[Wanted] = ()


@dataclass(kw_only=True)
class _Chunk:
    server: "_Server"
    tasks: Sequence[Task]
    feeds: Sequence[int]  # the groups of takers that it gives values to
    group: int  # the one that it is in itself
    epoch: int = 0
    at: int = 0  # the next task


@dataclass(kw_only=True)
class _Server:
    cores: Pool
    out: Pool
    back: Pool
    workers: Pool


@dataclass(kw_only=True)
class Run:
    """``chunks``: by server, each chunk's tasks. ``neighbours``: of chunks in that order; None: each of each other.

    Figures are of ``measured`` epochs after ``warm`` others. Where chunks run ahead, as many follow as keep them busy.
    """

    cluster: Cluster
    chunks: Sequence[Sequence[Sequence[Task]]]
    staleness: int = 0
    neighbours: Neighbours | None = None
    commit_seconds: float = 0.0
    warm: int = 0
    measured: int = 1
    epochs: int = field(init=False)
    _clock: Clock = field(default_factory=Clock)
    _servers: list[_Server] = field(default_factory=list)
    _all: list[_Chunk] = field(default_factory=list)
    _arrived: dict[tuple[int, int, int], int] = field(default_factory=dict)  # by group, exchange, epoch
    _await: dict[tuple[int, int, int], list[_Chunk]] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)  # of groups: how many feed each
    _ended: list[int] = field(default_factory=list)  # by epoch: chunks that are through
    _begins: list[list[_Chunk]] = field(default_factory=list)  # by epoch: chunks that wait to begin it
    _commits: list[float] = field(default_factory=list)
    _billed: float = 0.0
    _calls: int = 0
    _held: float = 0.0  # seconds that workers were held, without latency
    _marks: list[tuple[float, int, float, float, float, float]] = field(default_factory=list)
    _tuning: Tuning | None = None
    _decisions: list[Wanted] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.epochs = self.warm + self.measured + (self.staleness + 1 if self.staleness else 0)

    def run(self) -> Epochs:
        """From the first gather to the last commit."""
        self._build()
        for chunk in list(self._all):
            self._begin(chunk)
        self._clock.run()
        assert len(self._commits) == self.epochs, "chunks wait for each other for ever"
        return self._seen()

    def _build(self) -> None:
        cluster = self.cluster
        for tasks_by_chunk in self.chunks:
            server = _Server(
                cores=Pool(clock=self._clock, size=cluster.server.cores),
                out=Pool(clock=self._clock, size=1),
                back=Pool(clock=self._clock, size=1),
                workers=Pool(clock=self._clock, size=cluster.workers),
            )
            self._servers.append(server)
            for tasks in tasks_by_chunk:
                number = len(self._all)
                feeds = self.neighbours.after[number] if self.neighbours is not None else (0,)
                group = number if self.neighbours is not None else 0
                self._all.append(_Chunk(server=server, tasks=tasks, feeds=feeds, group=group))
        everybody = len(self._all)
        before = self.neighbours.before if self.neighbours is not None else (tuple(range(everybody)),)
        self._sizes = [len(sources) for sources in before]
        self._ended = [0] * self.epochs
        self._begins = [[] for _ in range(self.epochs)]
        if cluster.limits is not None:
            self._tuning = Tuning(workers=cluster.workers * cluster.servers)
        self._mark()

    # ---- epochs ----

    def _begin(self, chunk: _Chunk) -> None:
        """Begins the chunk's epoch, or waits for the commit that allows it."""
        if len(self._commits) < chunk.epoch - self.staleness:
            self._begins[chunk.epoch].append(chunk)
        else:
            self._next(chunk)

    def _end(self, chunk: _Chunk) -> None:
        self._ended[chunk.epoch] += 1
        if self._ended[chunk.epoch] == len(self._all):
            self._clock.after(self.commit_seconds, self._commit)
        chunk.epoch, chunk.at = chunk.epoch + 1, 0
        if chunk.epoch < self.epochs:
            self._begin(chunk)

    def _commit(self) -> None:
        self._commits.append(self._clock.now)
        self._mark()
        if self._tuning is not None:
            self._tune()
        allowed = len(self._commits) + self.staleness
        if allowed < self.epochs:
            waiting, self._begins[allowed] = self._begins[allowed], []
            for chunk in waiting:
                self._next(chunk)

    # ---- tasks ----

    def _next(self, chunk: _Chunk) -> None:
        """Runs the chunk's next task, once its neighbours' values are there."""
        if chunk.at == len(chunk.tasks):
            self._end(chunk)
            return
        task = chunk.tasks[chunk.at]
        if task.awaits is not None:
            wanted = (chunk.group, task.awaits, max(0, chunk.epoch - self.staleness))
            if self._arrived.get(wanted, 0) < self._sizes[chunk.group]:
                self._await.setdefault(wanted, []).append(chunk)
                return
        self._do(chunk, task)

    def _do(self, chunk: _Chunk, task: Task) -> None:
        kind, server = self.cluster.server, chunk.server
        done = partial(self._done, chunk, task)
        if task.place == "graph":
            server.cores.for_seconds(chunk.epoch, task.work / kind.adds, done)
        elif task.place == "network":
            server.out.for_seconds(chunk.epoch, kind.sending(task.work), done)
        elif self.cluster.worker is None:
            server.cores.for_seconds(chunk.epoch, task.work / kind.operations, done)
        else:
            self._call(chunk, self.cluster.worker, task, done)

    def _done(self, chunk: _Chunk, task: Task) -> None:
        chunk.at += 1
        if task.publishes is not None:
            for group in chunk.feeds:
                there = (group, task.publishes, chunk.epoch)
                self._arrived[there] = self._arrived.get(there, 0) + 1
                if self._arrived[there] == self._sizes[group]:
                    for waiting in self._await.pop(there, []):
                        self._do(waiting, waiting.tasks[waiting.at])
        self._next(chunk)

    def _call(self, chunk: _Chunk, worker: TensorWorker, task: Task, done: Then) -> None:
        """Calls a worker: it fetches, computes and gives back."""
        kind, clock, server, rank = self.cluster.server, self._clock, chunk.server, chunk.epoch
        called = 0.0

        def began() -> None:
            nonlocal called
            called = clock.now
            server.out.for_seconds(rank, kind.sending(task.to_worker), fetched)

        def fetched() -> None:
            slower = max(0.0, task.to_worker / worker.network - kind.sending(task.to_worker))
            slower += max(0.0, task.from_worker / worker.network - kind.sending(task.from_worker))
            clock.after(slower + task.work / worker.operations, computed)

        def computed() -> None:
            server.back.for_seconds(rank, kind.sending(task.from_worker), given)

        def given() -> None:
            self._billed += (clock.now - called) * worker.gigabytes * worker.per_gb_second + worker.per_call
            self._held += clock.now - called
            self._calls += 1
            server.workers.release()
            done()

        server.workers.take(rank, partial(clock.after, worker.latency, began))

    # ---- figures ----

    def _scale(self) -> float:
        """How many servers each simulated one stands for."""
        return self.cluster.servers / len(self._servers)

    def _mark(self) -> None:
        cores = sum(server.cores.used()[0] for server in self._servers)
        busy, waiting = (sum(server.workers.used()[i] for server in self._servers) for i in (0, 1))
        self._marks.append((self._clock.now, self._calls, self._billed, cores, busy, waiting))

    def _tune(self) -> None:
        """Looks at the epoch that has just been committed."""
        limits, before = self.cluster.limits, self._marks[-2]
        assert limits is not None
        assert self._tuning is not None
        now, calls, _, cores, _, waiting = (b - a for a, b in zip(before, self._marks[-1], strict=True))
        scale = self._scale()
        window = Window(
            seconds=now,
            tasks=round(calls * scale),
            task_seconds=self._held / calls if calls else 0.0,
            waiting=waiting / now * scale,
            idle_cores=1.0 - cores / (now * self.cluster.server.cores * len(self._servers)),
        )
        self._held = 0.0
        self._tuning, wanted = tune(self._tuning, window, limits)
        self._decisions.append(wanted)
        for server in self._servers:
            server.workers.resize(max(1, round(wanted.workers / self.cluster.servers)))

    def _seen(self) -> Epochs:
        first, last = self._marks[self.warm], self._marks[self.warm + self.measured]
        passed, calls, billed, cores, busy, _ = (b - a for a, b in zip(first, last, strict=True))
        count, scale = self.measured, self._scale()
        server_dollars = passed / count * self.cluster.servers * self.cluster.server.dollars / 3600
        return Epochs(
            seconds=passed / count,
            dollars=server_dollars + billed * scale / count,
            server_dollars=server_dollars,
            workers=sum(server.workers.size for server in self._servers) * self.cluster.servers // len(self._servers),
            busy_workers=busy / passed * scale,
            busy_cores=cores / (passed * self.cluster.server.cores * len(self._servers)),
            calls=calls * scale / count,
            commits=tuple(self._commits),
            decisions=tuple(self._decisions),
        )

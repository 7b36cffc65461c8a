"""A market that is played with real processes on this machine, and what the simulator predicts of it."""

# Machines of the market become processes: a node is started where one is rented, and killed (-9) where it is taken.
# Renting follows the simulator's own rules (``Fleet``). So what differs between the two columns is what nodes and
# coordinator really do, and how long it really takes.
#
#     launched                   first plan                first commit
#        |--------------------------|------------------------|------------- ... --- so many seconds after the plan
#          first machines are paid    the market's other changes are counted from here
#
# How long processes take to start depends on the machine, so it is measured beforehand as the layers are: a rehearsal
# starts the same run a few times, and then one more node.

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import grpc

from culm.local import nursery
from culm.local.cluster import LocalCluster
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.simulator.markets.account import Account, Row, Use
from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.fleet import Fleet
from culm.simulator.markets.job_profile import Cluster, Profile
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change
from culm.simulator.network import Clock
from culm.terminal.client import connect
from culm.terminal.progress import counted

POLL_SECONDS = 0.02
LOOK_SECONDS = 0.5  # between two looks at the status
REHEARSALS = 3  # starts, of which the median counts
PATIENCE = 120.0  # seconds until the first plan, or until another node is there
# Loopback is faster than any link. How long starts take is measured (``rehearsed``), and the rest is as in Cluster.
LOCAL = Cluster(starts_up=0.5, bytes_per_second=1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """The outcome of a run, real or simulated. ``lost``: seconds beyond what as many calm steps take."""

    steps: int
    seconds: float  # since the first plan
    first_step: float  # seconds from the launch until it was committed; 0.0: none was
    lost: float
    rollbacks: int
    losses: int  # nodes that the coordinator declared lost; what --json has always called it
    cost: float  # since the launch
    value: float  # samples for a dollar, in thousands


def choice_of(job: Job, machines: int, begins_with: int) -> Choice:
    """As the job asks for it."""
    resilience = job.resilience
    return Choice(
        redundancy=resilience.redundancy,
        ship_every=resilience.ship_every,
        copies=resilience.copies_held,
        chooses_copies=resilience.copies == "auto",
        machines=machines,
        begins_with=begins_with,
        checkpoint_steps=job.checkpoint.every if job.checkpoint is not None else 0,
    )


# ---- predicted -------------------------------------------------------------------------------------------------------


def predict(changes: Sequence[Change], profile: Profile, cluster: Cluster, choice: Choice, seconds: float) -> Happened:
    """What the simulator says of so many seconds after the first plan."""
    launch = max(cluster.launches, cluster.starts_up)
    later = [replace(c, at=c.at + launch) if c.at > 0.0 else c for c in changes]
    run = CulmRun(later, profile, cluster, choice)
    row = run.run(seconds + launch)
    first = run.account.first_step
    return _happened(
        row,
        steps=row.steps,
        rollbacks=row.fatal,
        lost=run.nodes_lost,
        seconds=row.seconds - launch,
        first_step=first if first is not None else 0.0,
        calm=run.calm_seconds(),
        samples=profile.samples_per_step,
    )


def _happened(
    row: Row, *, steps: int, rollbacks: int, lost: int, seconds: float, first_step: float, calm: float, samples: int
) -> Happened:
    return Happened(
        steps=steps,
        seconds=seconds,
        first_step=first_step,
        lost=seconds - steps * calm,
        rollbacks=rollbacks,
        losses=lost,
        cost=row.cost,
        value=steps * samples / row.cost / 1e3 if row.cost else 0.0,
    )


# ---- measured --------------------------------------------------------------------------------------------------------


class Machines:
    """The market's machines as processes: rented by the same rules as simulated ones.

    ``environments``: of nodes, by name; each is told its zone. ``waited``: seconds from the launch to the first plan.
    """

    def __init__(
        self,
        local: LocalCluster,
        changes: Sequence[Change],
        cluster: Cluster,
        choice: Choice,
        environments: dict[str, dict[str, str]],
        waited: float,
    ) -> None:
        self.account, self.clock = Account(), Clock()
        self._local = local
        self._environments = environments
        self._names: dict[str, str] = {}  # the market's name -> the node's
        self._waited = waited
        at_once = replace(cluster, starts_up=0.0, launches=0.0)
        self._fleet = Fleet(self.clock, self.account, at_once, choice.machines, self._start, self._take)
        for change in changes:
            at = change.at + waited if change.at > 0.0 else 0.0
            self.clock.at(at, lambda change=change: self._changed(change))  # type: ignore[misc]
        self.pass_to(0.0)

    def _changed(self, change: Change) -> None:
        self.account.pass_to(self.clock.now, Use.USEFUL)
        if change.kind == "add":
            self._fleet.offer(change)
        elif change.kind == "remove":
            self._fleet.take(change.node)

    def _start(self, machine: str, zone: str) -> None:
        name = f"n{len(self._names)}"
        self._names[machine] = name
        if name not in self._local.names:
            self._environments[name] = _told(zone)
            self._local.add(name)

    def _take(self, machine: str) -> None:
        self._local.kill(self._names[machine])

    def pass_to(self, now: float) -> None:
        """Whatever the market has until now happens; ``now``: seconds since the first plan."""
        until = now + self._waited
        while self.clock.next_at <= until:
            self.clock.step()
        self.clock.now = until
        self.account.pass_to(until, Use.USEFUL)


def _told(zone: str) -> dict[str, str]:
    return {"CULM_ZONE": zone} if zone else {}


def drive(
    job: Job, folder: Path, changes: Sequence[Change], cluster: Cluster, choice: Choice, seconds: float
) -> Happened:
    """What happens to real processes. Raises RunFailed."""
    at_once = [change for change in changes if change.kind == "add" and change.at == 0.0]
    environments = {f"n{i}": _told(change.zone) for i, change in enumerate(at_once[: choice.machines])}
    with _running(job, folder, choice.begins_with, environments) as run:
        machines = Machines(run.local, changes, cluster, choice, environments, run.waited)
        began, looked, step = time.monotonic(), 0.0, 0
        while (now := time.monotonic() - began) < seconds and step < job.job.steps:
            machines.pass_to(now)
            run.local.check()
            if now - looked >= LOOK_SECONDS:
                looked, step = now, _look(run.stub, now, seconds, step)
            time.sleep(POLL_SECONDS)
        machines.pass_to(now)
        events = run.events()
        step = run.stub.GetStatus(pb.GetStatusRequest(), timeout=10.0).step
    counted("")
    if told := ended_before(step >= job.job.steps, now, seconds):
        print(f"culm: {told}", file=sys.stderr)
    commits = [event.time for event in events if event.kind == "commit"]
    return _happened(
        machines.account.row("measured"),
        steps=step,
        rollbacks=sum(event.kind == "rollback" for event in events),
        lost=sum(event.kind == "lost" for event in events),
        seconds=now,
        first_step=commits[0] - run.launched if commits else 0.0,
        calm=_calm(commits),
        samples=job.samples_per_step,
    )


def rehearsed(job: Job, folder: Path, nodes: int, cluster: Cluster = LOCAL) -> Cluster:
    """The cluster with how long starts take on this machine: of the whole run, and of one node that comes later."""
    # The first start of all imports torch as well, and those after it find that done.
    nursery.wait(nursery.begin(["--version"], Path(os.devnull), os.environ))
    waited = [_rehearsed(job, folder, nodes)[0] for _ in range(REHEARSALS - 1)]
    last, joined = _rehearsed(job, folder, nodes, adds=True)
    return replace(cluster, launches=median([*waited, last]), starts_up=max(0.0, joined))


def _rehearsed(job: Job, folder: Path, nodes: int, adds: bool = False) -> tuple[float, float]:
    """Seconds until the first plan, and with ``adds`` until another node has joined."""
    joined = 0.0
    with _running(job, folder, nodes, {}) as run:
        if adds:
            run.local.add(f"n{nodes}")
            added = time.time()
            _until(run, lambda: len(run.events("joined")) > nodes, "another node has not joined")
            joined = run.events("joined")[nodes].time - added
    shutil.rmtree(run.local.folder)  # of one that fails the logs stay
    return run.waited, joined


@dataclass(frozen=True, slots=True)
class _Run:
    """A local cluster with its first plan."""

    local: LocalCluster
    stub: CoordinatorStub
    launched: float  # unix time
    waited: float  # seconds until the first plan

    def events(self, kind: str = "") -> list[pb.ListEventsResponse]:
        found = self.stub.ListEvents(pb.ListEventsRequest(from_sequence=1), timeout=10.0)
        return [event for event in found if kind in ("", event.kind)]


@contextmanager
def _running(job: Job, folder: Path, nodes: int, environments: dict[str, dict[str, str]]) -> Iterator[_Run]:
    launched = time.time()
    with (
        TemporaryDirectory(prefix="culm-replay-") as checkpoints,
        LocalCluster(_aside(job, checkpoints), folder, nodes, respawn=False, environments=environments) as local,
    ):
        channel, stub = connect(local.address, patience=10.0)
        with channel:
            run = _Run(local, stub, launched, 0.0)
            _until(run, lambda: stub.GetStatus(pb.GetStatusRequest(), timeout=10.0).phase == "running", "no plan")
            yield replace(run, waited=run.events("plan")[0].time - launched)


def _until(run: _Run, there: Callable[[], bool], what: str) -> None:
    """Raises JobError once PATIENCE is over."""
    deadline = time.monotonic() + PATIENCE
    while not there():
        run.local.check()
        if time.monotonic() > deadline:
            raise JobError(f"{what} after {PATIENCE:g} s", str(run.local.folder), "see the logs there")
        time.sleep(POLL_SECONDS)


def ended_before(trained: bool, now: float, seconds: float) -> str:
    """Says that the job was over before the market, if it was: the two columns are not of the same time then."""
    if not trained or now >= seconds:
        return ""
    after = "what the trace has after that is predicted, and did not happen"
    return f"the job was over after {now:.0f} of {seconds:.0f} s: {after}; give it more steps with --set job.steps=N"


def _aside(job: Job, folder: str) -> Job:
    """The job with its checkpoints in this folder: those at its own URL are of runs that count."""
    if job.checkpoint is None:
        return job
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"url": f"file://{folder}"})})


def _look(stub: CoordinatorStub, now: float, seconds: float, step: int) -> int:
    try:
        status = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
    except grpc.RpcError:
        return step
    counted(f"{now:.0f} of {seconds:.0f} s, step {status.step}, {len(status.nodes)} nodes")
    return int(status.step)


def _calm(commits: Sequence[float]) -> float:
    """Seconds of a step without disturbance: the median of all."""
    lengths = [after - before for before, after in pairwise(commits)]
    return median(lengths) if lengths else 0.0


# ---- side by side ----------------------------------------------------------------------------------------------------


def show(predicted: Happened, measured: Happened) -> None:
    """A table: what was predicted, what happened, and by how much they differ."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "predicted", "measured", "difference", box=None)
    for name, one, other in (
        ("steps", predicted.steps, measured.steps),
        ("first step after, s", predicted.first_step, measured.first_step),
        ("seconds lost", predicted.lost, measured.lost),
        ("lost nodes", predicted.losses, measured.losses),
        ("rollbacks", predicted.rollbacks, measured.rollbacks),
        ("cost, $", predicted.cost, measured.cost),
        ("1000 samples/$", predicted.value, measured.value),
    ):
        off = f"{one / other - 1.0:+.1%}" if other else ""
        table.add_row(name, f"{one:.4g}", f"{other:.4g}", off)
    Console().print(table)

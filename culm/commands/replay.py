"""``culm replay``: plays a trace with real processes, and prints the simulator's prediction beside what happened."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import grpc

from culm.commands.run import read_job, try_out
from culm.local.cluster import LocalCluster, job_folder_of
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.simulator.markets.account import Account, Row, Use
from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.fleet import Fleet
from culm.simulator.markets.job_profile import Cluster, Profile, of_job, read_profile
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change, hastened, read_trace
from culm.simulator.markets.workload import SPOT
from culm.simulator.network import Clock
from culm.terminal import flags, interrupts
from culm.terminal.client import connect
from culm.terminal.progress import counted

POLL_SECONDS = 0.02
LOOK_SECONDS = 0.5  # between two looks at the status
PATIENCE = 120.0  # seconds until the first plan
# A node that is a process of this machine: forked with torch in it, it only builds the model and joins. Loopback is
# faster than any link. The rest is as in Cluster.
LOCAL = Cluster(starts_up=0.5, bytes_per_second=1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """The outcome of a run, real or simulated. ``lost``: seconds beyond what as many calm steps take."""

    steps: int
    seconds: float
    lost: float
    rollbacks: int
    losses: int  # nodes; what --json has always called it
    cost: float
    value: float  # samples for a dollar, in thousands


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "replay",
        help="play a trace with real processes, beside the simulator's prediction",
        description="Starts and kills real nodes on this machine as the trace says, only faster, and prints the "
        "simulator's prediction beside what happened. See docs/simulator.md.",
        epilog="example: culm replay examples/digits_mlp.toml --trace p3.csv --speed 100 --hours 2 --machines 5",
    )
    parser.add_argument("job", metavar="JOB.toml", help="the job file")
    parser.add_argument("--trace", required=True, metavar="FILE", help="when machines come and go: docs/simulator.md")
    parser.add_argument(
        "--speed",
        type=flags.number(above=True, most=1e9),
        default=100.0,
        metavar="X",
        help="how many times as fast; default: 100",
    )
    parser.add_argument(
        "--burst",
        type=flags.number(most=1e6),
        default=0.0,
        metavar="S",
        help="changes up to S seconds apart stay as far apart, and only longer pauses pass faster; default: 0",
    )
    parser.add_argument(
        "--hours", type=flags.number(above=True, most=1e6), metavar="H", help="hours of the trace to play; default: all"
    )
    parser.add_argument(
        "--machines",
        type=flags.whole(1, flags.MOST_NODES),
        metavar="N",
        help="machines to rent at most; default: stages + 2",
    )
    parser.add_argument("--profile", metavar="FILE", help="a file of culm profile; default: measure the layers first")
    parser.add_argument(
        "--price",
        type=flags.number(),
        default=SPOT,
        metavar="$/H",
        help=f"of a machine, in the trace's hours; default: {SPOT}",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a key of the job"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=replay)


def replay(arguments: argparse.Namespace) -> int:
    trace = read_trace(arguments.trace)
    end = arguments.hours * 3600.0 if arguments.hours is not None else trace[-1].at
    changes = hastened([change for change in trace if change.at <= end], arguments.speed, arguments.burst)
    rest = end - max((change.at for change in trace if change.at <= end), default=0.0)
    seconds = (changes[-1].at if changes else 0.0) + rest / arguments.speed
    if not seconds > 0:
        raise JobError("no time of the trace is left to replay", "--hours", "give more than 0")
    job = read_job(arguments.job, arguments.set)
    machines = arguments.machines or job.pipeline.stages + 2
    begins_with = min(machines, sum(change.kind == "add" and change.at == 0.0 for change in trace))
    if begins_with < job.pipeline.stages:
        what = f"the trace begins with {begins_with} machines, too few for {job.pipeline.stages} stages"
        raise JobError(what, arguments.trace, "take another trace, or fewer stages with --set pipeline.stages=N")
    interrupts.end_on_sigterm()
    profile = _profile(job, arguments.profile)
    cluster = replace(
        LOCAL,
        per_hour=arguments.price * end / seconds,
        seed_bytes_per_second=job.resilience.seed_bytes_per_second,
    )
    choice = Choice(
        redundancy=job.resilience.redundancy,
        ship_every=job.resilience.ship_every,
        machines=machines,
        begins_with=begins_with,
        checkpoint_steps=job.checkpoint.every if job.checkpoint is not None else 0,
    )
    predicted = predict(changes, profile, cluster, choice, seconds)
    measured = drive(job, job_folder_of(arguments.job), changes, cluster, choice, seconds)
    if arguments.json:
        print(json.dumps({"predicted": asdict(predicted), "measured": asdict(measured)}))
    else:
        _show(predicted, measured)
    return 0


def _profile(job: Job, path: str | None) -> Profile:
    if path is not None:
        given = read_profile(path)
        return of_job(job, given.layers, given.source)
    from culm.commands.profile import ROUNDS, measure

    try_out(job)
    return measure(job, ROUNDS)


def predict(changes: Sequence[Change], profile: Profile, cluster: Cluster, choice: Choice, seconds: float) -> Happened:
    """What the simulator says. The time counts from the first step, as that of the real run does."""
    later = [replace(c, at=c.at + cluster.starts_up) if c.at > 0.0 else c for c in changes]
    run = CulmRun(later, profile, cluster, choice)
    row = run.run(seconds + cluster.starts_up)
    return _happened(row, row.steps, row.fatal, row.preemptions, seconds, run.calm_seconds(), profile.samples_per_step)


def _happened(row: Row, steps: int, rollbacks: int, lost: int, seconds: float, calm: float, samples: int) -> Happened:
    thousands = steps * samples / row.cost / 1e3 if row.cost else 0.0
    return Happened(
        steps=steps,
        seconds=seconds,
        lost=seconds - steps * calm,
        rollbacks=rollbacks,
        losses=lost,
        cost=row.cost,
        value=thousands,
    )


class Machines:
    """The trace's machines as processes: rented by the same rules as simulated ones."""

    def __init__(self, local: LocalCluster, changes: Sequence[Change], cluster: Cluster, choice: Choice) -> None:
        self.account, self.clock = Account(), Clock()
        self._local = local
        self._names: dict[str, str] = {}  # the trace's name -> the node's
        at_once = replace(cluster, starts_up=0.0)
        self._fleet = Fleet(self.clock, self.account, at_once, choice.machines, self._start, self._take)
        for change in changes:
            self.clock.at(change.at, lambda change=change: self._changed(change))  # type: ignore[misc]
        while self.clock.next_at <= 0.0:
            self.clock.step()

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
            self._local.add(name)

    def _take(self, machine: str) -> None:
        self._local.kill(self._names[machine])

    def pass_to(self, now: float) -> None:
        """Whatever the trace has until now happens."""
        while self.clock.next_at <= now:
            self.clock.step()
        self.clock.now = now
        self.account.pass_to(now, Use.USEFUL)


def drive(
    job: Job, folder: Path, changes: Sequence[Change], cluster: Cluster, choice: Choice, seconds: float
) -> Happened:
    """What happens to real processes. Raises RunFailed."""
    with (
        TemporaryDirectory(prefix="culm-replay-") as checkpoints,
        LocalCluster(_aside(job, checkpoints), folder, choice.begins_with, respawn=False) as local,
    ):
        channel, stub = connect(local.address, patience=10.0)
        with channel:
            _until_it_runs(local, stub)
            machines = Machines(local, changes, cluster, choice)
            began, looked, step = time.monotonic(), 0.0, 0
            while (now := time.monotonic() - began) < seconds and step < job.job.steps:
                machines.pass_to(now)
                local.check()
                if now - looked >= LOOK_SECONDS:
                    looked, step = now, _look(stub, now, seconds, step)
                time.sleep(POLL_SECONDS)
            machines.pass_to(now)
            events = list(stub.ListEvents(pb.ListEventsRequest(from_sequence=1), timeout=10.0))
            step = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0).step
    counted("")
    if told := ended_before(step >= job.job.steps, now, seconds):
        print(f"culm replay: {told}", file=sys.stderr)
    rollbacks, lost = (sum(event.kind == kind for event in events) for kind in ("rollback", "lost"))
    calm = _calm(events)
    return _happened(machines.account.row("measured"), step, rollbacks, lost, now, calm, job.samples_per_step)


def ended_before(trained: bool, now: float, seconds: float) -> str:
    """Says that the job was over before the trace, if it was: the two columns are not of the same time then."""
    if not trained or now >= seconds:
        return ""
    after = "what the trace has after that is predicted, and did not happen"
    return f"the job was over after {now:.0f} of {seconds:.0f} s: {after}; give it more steps with --set job.steps=N"


def _aside(job: Job, folder: str) -> Job:
    """The job with its checkpoints in this folder: those at its own URL are of runs that count."""
    if job.checkpoint is None:
        return job
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"url": f"file://{folder}"})})


def _until_it_runs(local: LocalCluster, stub: CoordinatorStub) -> None:
    deadline = time.monotonic() + PATIENCE
    while stub.GetStatus(pb.GetStatusRequest(), timeout=10.0).phase != "running":
        local.check()
        if time.monotonic() > deadline:
            raise JobError(f"training has not begun after {PATIENCE:g} s", str(local.folder), "see the logs there")
        time.sleep(POLL_SECONDS)


def _look(stub: CoordinatorStub, now: float, seconds: float, step: int) -> int:
    try:
        status = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
    except grpc.RpcError:
        return step
    counted(f"{now:.0f} of {seconds:.0f} s, step {status.step}, {len(status.nodes)} nodes")
    return int(status.step)


def _calm(events: Sequence[pb.ListEventsResponse]) -> float:
    """Seconds of a step without disturbance: the median of all."""
    commits = [event.time for event in events if event.kind == "commit"]
    lengths = [after - before for before, after in pairwise(commits)]
    return median(lengths) if lengths else 0.0


def _show(predicted: Happened, measured: Happened) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "predicted", "measured", "difference", box=None)
    for name, one, other in (
        ("steps", predicted.steps, measured.steps),
        ("seconds lost", predicted.lost, measured.lost),
        ("lost nodes", predicted.losses, measured.losses),
        ("rollbacks", predicted.rollbacks, measured.rollbacks),
        ("cost, $", predicted.cost, measured.cost),
        ("1000 samples/$", predicted.value, measured.value),
    ):
        off = f"{one / other - 1.0:+.1%}" if other else ""
        table.add_row(name, f"{one:.4g}", f"{other:.4g}", off)
    Console().print(table)

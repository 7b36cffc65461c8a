"""A recorded event log, played as if it happened now: the demo mode."""

import gzip
import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from culm.pipeline.errors import JobError
from culm.pipeline.messages import resources_to_proto
from culm.pipeline.money.codec import Entry, Reader, of_lines
from culm.pipeline.money.kinds import (
    Checkpointed,
    Committed,
    Dismissed,
    Done,
    Draining,
    Failed,
    Joined,
    Left,
    Lost,
    Paused,
    Planned,
    RolledBack,
    Stalled,
    Unpaused,
    Used,
    Waiting,
)
from culm.pipeline.money.ledger import USES, Ledger
from culm.pipeline.plan_codec import stages_to_proto
from culm.protos import coordinator_pb2 as pb
from culm.ui.alert_rules import Pending, evaluate
from culm.ui.history import History
from culm.ui.look import Look
from culm.ui.source import LogLines
from culm.ui.trends import resources_of

DEMO = Path(__file__).with_name("demo.jsonl.gz")
DEMO_COMMITS = 24  # that the demo begins with: there is a curve, and soon the first node is lost
PAUSE = 10.0  # seconds for which the end is shown before the recording starts again
RATE_STEPS = 10


class Replay:
    """The status that a coordinator would tell, made from the events so far."""

    def __init__(self, name: str = "recorded run") -> None:
        self.name = name
        self.ledger = Ledger()
        self.history = History()
        self._status = pb.GetStatusResponse(phase="waiting", detail="waiting for nodes", loss=math.nan)
        self._nodes: dict[str, pb.NodeStatus] = {}
        self._times: deque[float] = deque(maxlen=RATE_STEPS + 1)
        self._exposed: dict[int, float] = {}
        self._origin: int | None = None  # the step that the era began from

    def take(self, entry: Entry) -> None:
        self.ledger.take(entry)
        self.history.take(entry)
        status, event = self._status, entry.event
        match event:
            case Joined():
                self._joined(event)
            case Lost() | Left() | Dismissed():
                self._nodes.pop(event.node, None)
            case Draining():
                self._nodes[event.node].state = "draining"
            case Used():
                self._used(event)
            case Planned():
                self._planned(entry, event)
            case Committed():
                status.step, status.loss, status.awaited = event.step + 1, event.loss, ""
                self._times.append(entry.time)
            case RolledBack():
                status.step, status.awaited, self._origin = event.step, "", event.step
                status.phase, status.detail = "waiting", entry.text
                self._times.clear()
                self._without_a_plan()
            case Waiting():
                status.phase, status.detail = "waiting", entry.text
            case Checkpointed():
                status.checkpoint, status.checkpoint_folder = event.step, event.folder
            case Stalled():
                status.awaited = event.awaited
            case Paused():
                status.phase, status.detail, status.pause.who = "paused", entry.text, event.who
                status.pause.since = entry.time
            case Unpaused():
                status.phase, status.detail = "running", entry.text
                status.ClearField("pause")
            case Done():
                status.phase, status.detail, status.stopped_early = "done", entry.text, event.early
            case Failed():
                status.phase, status.detail = "failed", entry.text

    def _joined(self, event: Joined) -> None:
        node = pb.NodeStatus(id=event.node, incarnation=event.incarnation, state="joining")
        node.zone, node.address = event.zone, event.address
        for name in ("provider", "instance_type", "region", "zone", "market"):
            setattr(node.machine, name, getattr(event, name))
        self._nodes[node.id] = node

    def _used(self, event: Used) -> None:
        node = self._nodes.get(event.node)
        if node is None:
            return
        for use in USES:
            setattr(node.times, use, getattr(event, use))
        for peer, count in event.sent.items():
            node.sent_bytes[peer] = count
        if event.seconds:
            node.resources.CopyFrom(resources_to_proto(resources_of(event)))

    def _without_a_plan(self) -> None:
        self._status.ClearField("plan")
        self._exposed = {}
        for node in self._nodes.values():
            del node.stages[:], node.standby_of[:]

    def _planned(self, entry: Entry, event: Planned) -> None:
        status, stages = self._status, event.stages
        status.generation = entry.generation
        if not status.HasField("pause"):
            status.phase, status.detail = "running", "training"
        status.steps, status.plan.reason = event.steps, entry.text
        status.samples_per_step, status.tokens_per_step = event.samples_per_step, event.tokens_per_step
        status.samples_per_epoch = event.samples_per_epoch
        if event.chunks:
            status.graph.chunks, status.graph.staleness = event.chunks, event.staleness or 0
            status.graph.refresh, status.graph.fresh_from = event.refresh or 1, event.fresh_from or 0
        self._origin = entry.step if self._origin is None else self._origin
        status.plan.origin_step = self._origin
        del status.plan.stages[:]
        status.plan.stages.extend(stages_to_proto(stages))
        exposed = {s for s, stage in enumerate(stages) if len(stage.required()) < 2}
        self._exposed = {s: self._exposed.get(s, entry.time) for s in exposed}
        for node in self._nodes.values():
            del node.stages[:], node.standby_of[:]
            node.stages.extend(s for s, stage in enumerate(stages) if node.id in stage.owners)
            node.standby_of.extend(s for s, stage in enumerate(stages) if node.id in [b.node for b in stage.standbys])
            if node.state != "draining":
                node.state = "active" if node.stages or node.standby_of else "spare"

    def look(self, at: float, ended: bool = False) -> Look:
        status, cost = pb.GetStatusResponse(), self.ledger.figures(at)
        status.CopyFrom(self._status)
        status.job, status.cost = self.name, cost.dollars
        if status.awaited:
            status.stalled_seconds = at - self._times[-1] if self._times else 0.0
        if status.phase == "running" and len(self._times) > 1 and self._times[-1] > self._times[0]:
            steps = (len(self._times) - 1) / (self._times[-1] - self._times[0])
            status.samples_per_second = steps * status.samples_per_step
        bills = {(n.node, n.incarnation): n for n in cost.nodes}
        for node in self._nodes.values():
            bill = bills.get((node.id, node.incarnation), pb.NodeCost())
            node.price_per_hour, node.spent = bill.price_per_hour, bill.dollars
            status.nodes.append(node)
        for s in range(len(status.plan.stages)):
            status.exposure[s] = at - self._exposed[s] if s in self._exposed else 0.0
        return Look(status=status, cost=cost, history=self.history, at=at, ended=ended)


class Recorded:
    """A log file, from its first commit to its end and again, ``speed`` times as fast as it happened.

    With a speed of 0 it is a run that has ended: all of it at once.
    """

    recorded = True

    def __init__(self, path: Path, speed: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = read_log(path)
        self._job = "recorded run" if path == DEMO else path.name.partition(".")[0]
        self.name = f"recorded: {path.name.partition('.')[0]}"
        self._speed = speed
        self.still = not speed
        self._clock = clock
        self._begun = clock()
        self._lock = threading.Lock()
        self._reader = Reader("what the pages show")
        self._first = _beginning(self._events, DEMO_COMMITS if path == DEMO else 1)
        self._replay, self._next = Replay(self._job), 0
        self._pending: Pending = {}

    def look(self) -> Look:
        with self._lock:
            if not self._events:
                return Look(problem="The recorded log is empty. Record a run with culm events --json.")
            last = self._events[-1].time
            at = self._first + (self._clock() - self._begun) * self._speed if self._speed else last
            if at > last + PAUSE * self._speed:
                self._begun, self._replay, self._next, at = self._clock(), Replay(self._job), 0, self._first
                self._pending = {}
            while self._next < len(self._events) and self._events[self._next].time <= at:
                self._reader.read(self._events[self._next], self._replay.take)
                self._next += 1
            look = self._replay.look(min(at, last), ended=at >= last)
            if look.ended:  # of a run that is past nothing can be mended
                return look
            firing, self._pending = evaluate(look, look.at, self._pending)
            return replace(look, firing=firing)

    def log_lines(self, node: str, level: str) -> LogLines:
        return LogLines(problem="A recorded run has no log lines: these stay with its coordinator.")

    def kill(self, node: str) -> str:
        return "this is a recorded run: it has no nodes to preempt"


def _beginning(events: list[pb.ListEventsResponse], commits: int) -> float:
    """When to begin: before the first commit nodes are waited for, often for long."""
    times = [event.time for event in events if event.kind == Committed.kind]
    if times:
        return times[min(commits, len(times)) - 1]
    return events[0].time if events else 0.0


def read_log(path: Path) -> list[pb.ListEventsResponse]:
    """The events of a file that ``culm events --json`` wrote. Raises JobError, naming the file and the line."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            return list(of_lines(file, str(path)))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise JobError(f"the log cannot be read: {error}", str(path), "write it with culm events --json") from error

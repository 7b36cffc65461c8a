"""What a step waited for, from its end back to its begin: the chain of work and ways that took its time. Pure."""

# Each piece of work began when the last thing that it needed was there: the piece of work before it on its node, or a
# result of another node. Going back along the later of the two leads from the last Apply to the first forward. The legs
# of that path follow each other without a gap, so their seconds add up to the step's:
#
#     forward, backward, ...   work, as in ``timetable.USES``
#     between                  from a piece of work to the next one of the same node, which had its input already
#     travel                   from the end of the work that made a tensor until it was at the other node
#     taken                    from there until the work began that takes it
#     ready                    from a gradient that is whole until the node reported it
#     commit                   from the last report of all nodes until the commit was heard
#     applied                  from there until the node began to apply it
#
# With clocks that differ a leg between two nodes is too long by so much, and one in the other direction too short.

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from culm.pipeline.flow import CROSSES, awaited, maker_of, takes_samples
from culm.pipeline.instruction import Instruction
from culm.pipeline.keys import PARTIAL, REDUCED
from culm.pipeline.timetable import BETWEEN, STEP_WORK, Arrival, Doing, Lane, TimedSpan, Timetable

TRAVEL, TAKEN, READY, COMMIT, APPLIED = "travel", "taken", "ready", "commit", "applied"
WAYS = (BETWEEN, TRAVEL, TAKEN, READY, COMMIT, APPLIED)


@dataclass(frozen=True, slots=True)
class Leg:
    """``what``: a use of the timetable, or one of WAYS; ``node``: where it ends. Times are unix seconds."""

    what: str
    node: str
    begin: float
    end: float
    name: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class _At:
    """A piece of work on a node."""

    lane: Lane
    span: TimedSpan


class _Index:
    """What can be looked up in a timetable."""

    def __init__(self, timetable: Timetable) -> None:
        self.timetable = timetable
        self.work = {lane.node: [s for s in lane.spans if s.is_work] for lane in timetable.lanes}
        self.stages = 1 + max((duty.stage for duty in timetable.owners()), default=0)
        self.made: dict[Instruction, list[_At]] = {}
        for lane in timetable.lanes:
            for span in self.work[lane.node]:
                if span.doing in STEP_WORK and span.instruction is not None:
                    self.made.setdefault(span.instruction, []).append(_At(lane, span))
        self.arrived: dict[tuple[str, Instruction], float] = {
            (lane.node, maker_of(arrival.key)): arrival.at
            for lane in timetable.lanes
            for arrival in lane.arrivals
            if arrival.key.kind in CROSSES
        }

    def before(self, lane: Lane, begin: float) -> _At | None:
        """The node's last piece of work that began before that."""
        spans = self.work[lane.node]
        place = bisect_left(spans, begin, key=lambda span: span.begin)
        return _At(lane, spans[place - 1]) if place else None

    def gave_itself(self, stage: int, at: float, lane: Lane) -> _At | None:
        """The node's own work that gave a gradient of the stage by that time."""
        spans = (s for s in reversed(self.work[lane.node]) if s.begin <= at and _gives_gradient(s, stage))
        span = next(spans, None)
        return _At(lane, span) if span is not None else None

    def gave(self, stage: int, at: float, other_than: str) -> _At | None:
        """The work of another node that gave a gradient of the stage, which was there at that time."""
        found = [
            _At(lane, span)
            for lane in self.timetable.lanes
            for span in self.work[lane.node]
            if lane.node != other_than and span.begin <= at and _gives_gradient(span, stage)
        ]
        return max(found, key=lambda each: each.span.begin, default=None)


def _gives_gradient(span: TimedSpan, stage: int) -> bool:
    if span.doing in (Doing.REDUCE, Doing.SUM):
        return span.stage == stage
    runs_backwards = span.doing in (Doing.BACKWARD, Doing.WEIGHTS)
    return span.instruction is not None and runs_backwards and span.instruction.stage == stage


def critical_path(timetable: Timetable) -> tuple[Leg, ...]:
    """In order of time; empty where nothing was applied. It ends where the next step begins: at the first stage."""
    index = _Index(timetable)
    last = _last(timetable)
    legs: list[Leg] = []
    at = last
    for _ in range(sum(map(len, index.work.values()))):  # each piece of work is passed once at most
        if at is None:
            break
        until = legs[-1].begin if legs else at.span.end
        legs.append(Leg(at.span.use, at.lane.node, at.span.begin, min(at.span.end, until), at.span.name))
        if at.span.begin <= timetable.begin:
            break
        ways, at = _back(index, at)
        legs.extend(ways)
    return tuple(reversed(legs))


def _last(timetable: Timetable) -> _At | None:
    """The Apply that the next step's first forward waits for."""
    firsts = {node for duty, node in timetable.owners().items() if takes_samples(duty.stage)}
    found = [_At(lane, span) for lane in timetable.lanes for span in lane.spans if span.doing is Doing.APPLY]
    own = [each for each in found if each.lane.node in firsts]
    return max(own or found, key=lambda each: each.span.end, default=None)


def _back(index: _Index, at: _At) -> tuple[list[Leg], _At | None]:
    """What the piece of work waited for last, and the ways from there, the latest first."""
    node, begin = at.lane.node, at.span.begin
    before = index.before(at.lane, begin)
    free = before.span.end if before is not None else float("-inf")
    if at.span.doing is Doing.APPLY:
        return _commit(index, at, before, free)
    source, there, what = _input(index, at)
    if source is not None and there > free:
        made = min(source.span.end, there)
        ways = [Leg(TAKEN, node, there, begin, at.span.name), Leg(TRAVEL, node, made, there, what)]
        return ways, source
    if before is None:  # the step had begun while this node still applied the one before
        return [Leg(BETWEEN, node, index.timetable.begin, begin, at.span.name)], None
    return [Leg(BETWEEN, node, free, begin, at.span.name)], before


def _input(index: _Index, at: _At) -> tuple[_At | None, float, str]:
    """The work of another node that gave what this piece takes; when it was there, and what it is."""
    span, node = at.span, at.lane.node
    if span.doing in STEP_WORK and span.instruction is not None:
        needed = awaited(span.instruction, index.stages)
        makers = [m for m in index.made.get(needed, ()) if m.lane.node != node] if needed is not None else []
        if needed is None or not makers:
            return None, 0.0, ""
        maker = max(makers, key=lambda each: each.span.end)
        return maker, index.arrived.get((node, needed), maker.span.end), str(needed)
    if span.doing in (Doing.REDUCE, Doing.SUM):
        came = _gradient(at.lane, span.stage, span.begin)
        if came is not None:
            return index.gave(span.stage, came.at, node), came.at, f"gradient of stage {span.stage}"
    return None, 0.0, ""


def _gradient(lane: Lane, stage: int, until: float) -> Arrival | None:
    """The last gradient of the stage that had come by then."""
    came = (a for a in lane.arrivals if a.key.kind in (PARTIAL, REDUCED) and a.key.stage == stage and a.at <= until)
    return max(came, key=lambda each: each.at, default=None)


def _commit(index: _Index, at: _At, before: _At | None, free: float) -> tuple[list[Leg], _At | None]:
    """A commit waits for the last report of all nodes, and that for a gradient."""
    node, begin = at.lane.node, at.span.begin
    reports = [(when, stage, lane) for lane in index.timetable.lanes for stage, when in lane.ready if when <= begin]
    if not reports:
        return ([Leg(BETWEEN, node, free, begin)], before) if before is not None else ([], None)
    when, stage, lane = max(reports, key=lambda each: each[0])
    heard = at.lane.committed
    heard = heard if heard is not None and when <= heard <= begin else begin
    ways = [Leg(APPLIED, node, heard, begin), Leg(COMMIT, node, when, heard, f"stage {stage} of {lane.node} is ready")]
    if free > heard:  # it was busy when the commit came
        return [Leg(BETWEEN, node, free, begin)], before
    # A holder that did not give the gradient itself reports it when it comes, whatever its compute thread does.
    own = index.gave_itself(stage, when, lane)
    came = _gradient(lane, stage, when)
    source = index.gave(stage, came.at, lane.node) if came is not None else None
    if came is not None and source is not None and (own is None or came.at > own.span.end):
        made = min(source.span.end, came.at)
        what = f"gradient of stage {stage}"
        return [*ways, Leg(READY, lane.node, came.at, when, what), Leg(TRAVEL, lane.node, made, came.at, what)], source
    if own is None:
        return ways, None
    return [*ways, Leg(READY, lane.node, min(own.span.end, when), when, f"stage {stage}")], own


def by_kind(path: tuple[Leg, ...]) -> Mapping[str, tuple[float, int]]:
    """Seconds of the path by what they were, and how many legs; in order of first appearance."""
    found: dict[str, tuple[float, int]] = {}
    for leg in path:
        seconds, count = found.get(leg.what, (0.0, 0))
        found[leg.what] = seconds + leg.seconds, count + 1
    return found


def ways_of(path: tuple[Leg, ...]) -> Iterator[Leg]:
    """The legs that are no work."""
    return (leg for leg in path if leg.what in WAYS)

"""A node's timetable between the wire's messages and the domain's values; who asks checks what nodes say (rule 18)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import isfinite

from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.keys import PARTIAL, REDUCED, Kind
from culm.pipeline.messages import key_from_proto, key_to_proto
from culm.pipeline.plan_bounds import MOST_LAYERS
from culm.pipeline.schedule import Schedule
from culm.pipeline.timetable import Arrival, Doing, Lane, TimedSpan, are_apart
from culm.protos import stage_pb2, tensor_pb2

PIECE = 500  # spans, or arrivals, in one message: some ten kilobytes
MOST = 1 << 16  # of either that are taken of one step of one node; a node keeps fewer
MOST_STEPS = 1 << 53
MOST_UNITS = 1 << 20  # pipelines, microbatches, buckets: no run comes near
LATEST = 1e11  # unix seconds: the year 5138

_TO_WIRE: dict[Doing, int] = {doing: getattr(stage_pb2, f"DOING_{doing.name}") for doing in Doing}
_FROM_WIRE: dict[int, Doing] = {number: doing for doing, number in _TO_WIRE.items()}
_OP: dict[Doing, Pass] = {Doing.BACKWARD: "B", Doing.WEIGHTS: "W"}
_RUNS = (Doing.FORWARD, Doing.BACKWARD, Doing.WEIGHTS, Doing.REDUNDANT, Doing.LOAD)
_KINDS = frozenset(int(kind) for kind in Kind)


class Untrue(ValueError):
    """What a node tells cannot be true; the text says what, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a node has told: the steps that are whole there, how the job orders its work, and the step's part."""

    steps: range
    schedule: Schedule
    lane: Lane


def to_proto(told: Told) -> Iterator[stage_pb2.GetTimetableResponse]:
    """In pieces, so that no message is large."""
    schedule, lane = told.schedule, told.lane
    first = stage_pb2.GetTimetableResponse(
        first_step=told.steps.start,
        end_step=told.steps.stop,
        microbatches=schedule.microbatches,
        lead=schedule.lead,
        splits=schedule.splits,
        ready=(stage_pb2.ReadyAt(stage=stage, at=at) for stage, at in lane.ready),
        committed=lane.committed or 0.0,
    )
    yield first
    for begin in range(0, max(len(lane.spans), len(lane.arrivals)), PIECE):
        spans, arrivals = lane.spans[begin : begin + PIECE], lane.arrivals[begin : begin + PIECE]
        yield stage_pb2.GetTimetableResponse(
            spans=map(_span_to_proto, spans),
            arrivals=(stage_pb2.Arrival(key=key_to_proto(each.key), at=each.at) for each in arrivals),
        )


def _span_to_proto(span: TimedSpan) -> stage_pb2.TimedSpan:
    said = stage_pb2.TimedSpan(begin=span.begin, end=span.end, stage=span.stage, index=span.index)
    said.doing = _TO_WIRE[span.doing]  # type: ignore[assignment]  # a number, as the message wants it
    if span.instruction is not None:
        (said.pipeline, said.stage), op, said.index = span.instruction
        said.evaluates = op == "E"
    if span.awaited is not None:
        said.awaited.CopyFrom(key_to_proto(span.awaited))
    return said


def from_proto(node: str, pieces: Iterator[stage_pb2.GetTimetableResponse]) -> Told:
    """Raises Untrue for what no node says: nothing of it is believed unchecked."""
    first = next(pieces, None)
    if first is None:
        raise Untrue("it has told nothing")
    if not first.first_step <= first.end_step <= MOST_STEPS:
        raise Untrue(f"it has steps {first.first_step} up to {first.end_step}")
    if not 0 < first.microbatches <= MOST_UNITS or not 0 < first.lead <= MOST_UNITS or len(first.ready) > MOST:
        raise Untrue(f"it tells of {first.microbatches} microbatches, and a lead of {first.lead}")
    spans: list[TimedSpan] = []
    arrivals: list[Arrival] = []
    for piece in chain((first,), pieces):
        _take(piece, spans, arrivals)
    if not are_apart(spans):
        raise Untrue("two of its spans overlap")
    return Told(
        steps=range(first.first_step, first.end_step),
        schedule=Schedule(first.microbatches, first.lead, first.splits),
        lane=Lane(
            node=node,
            spans=tuple(spans),
            arrivals=tuple(arrivals),
            ready=tuple((_bounded(each.stage, MOST_LAYERS), _moment(each.at)) for each in first.ready),
            committed=_moment(first.committed) or None,
        ),
    )


def _take(piece: stage_pb2.GetTimetableResponse, spans: list[TimedSpan], arrivals: list[Arrival]) -> None:
    if len(spans) + len(piece.spans) > MOST or len(arrivals) + len(piece.arrivals) > MOST:
        raise Untrue(f"it tells more than {MOST} spans or arrivals of one step")
    spans.extend(map(_span_from_proto, piece.spans))
    arrivals.extend(Arrival(key_from_proto(_key(each.key)), _moment(each.at)) for each in piece.arrivals)


def _span_from_proto(said: stage_pb2.TimedSpan) -> TimedSpan:
    doing = _FROM_WIRE.get(said.doing)
    if doing is None:
        raise Untrue(f"it does {int(said.doing)}, which this version does not know")
    begin, end = _moment(said.begin), _moment(said.end)
    if end < begin:
        raise Untrue(f"a span of it ends {begin - end:g} s before it begins")
    duty = Duty(_bounded(said.pipeline, MOST_UNITS), _bounded(said.stage, MOST_LAYERS))
    index = _bounded(said.index, MOST_UNITS)
    op: Pass = "E" if said.evaluates else _OP.get(doing, "F")
    return TimedSpan(
        doing=doing,
        begin=begin,
        end=end,
        instruction=Instruction(duty, op, index) if doing in _RUNS else None,
        awaited=key_from_proto(_key(said.awaited)) if doing is Doing.BUBBLE and said.HasField("awaited") else None,
        stage=0 if doing in _RUNS else duty.stage,
        index=0 if doing in _RUNS else index,
    )


def _key(key: tensor_pb2.Key) -> tensor_pb2.Key:
    if key.kind not in _KINDS or key.step > MOST_STEPS:
        raise Untrue(f"a tensor of it is of kind {int(key.kind)}, and of step {key.step}")
    kind = int(key.kind)
    if (kind == PARTIAL) != bool(key.end) or (kind == REDUCED and key.pipeline):
        raise Untrue("a tensor of it is of a block that does not exist")
    for number in (key.pipeline, key.index, key.end, key.use):
        _bounded(number, MOST_UNITS)
    _bounded(key.stage, MOST_LAYERS)
    return key


def _bounded(number: int, most: int) -> int:
    if number > most:
        raise Untrue(f"it tells of number {number} of something; {most} is the highest")
    return number


def _moment(at: float) -> float:
    if not isfinite(at) or not 0.0 <= at <= LATEST:
        raise Untrue(f"it tells of the moment {at}")
    return at

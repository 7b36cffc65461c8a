"""A timetable on the wire, and what of it is refused."""

from collections.abc import Callable
from math import nan

import pytest

from culm.pipeline.instruction import Pass
from culm.pipeline.schedule import Schedule
from culm.pipeline.timetable import Doing, Lane, TimedSpan
from culm.pipeline.timetable_codec import PIECE, Told, Untrue, from_proto, to_proto
from culm.protos import stage_pb2
from tests.short import activation, unit
from tests.unit.hand_made import lanes

TOLD = Told(steps=range(3, 9), schedule=Schedule(2, lead=2, splits=True), lane=lanes()[0])


def pieces() -> list[stage_pb2.GetTimetableResponse]:
    return list(to_proto(TOLD))


def test_what_is_told_is_what_is_heard() -> None:
    assert from_proto("n0", iter(pieces())) == TOLD


RAN: list[tuple[Doing, Pass]] = [
    (Doing.FORWARD, "F"),
    (Doing.FORWARD, "E"),
    (Doing.BACKWARD, "B"),
    (Doing.WEIGHTS, "W"),
    (Doing.REDUNDANT, "F"),
    (Doing.LOAD, "E"),
]


def test_every_doing_comes_back() -> None:
    ran = [TimedSpan(doing=d, begin=float(i), end=i + 0.5, instruction=unit(1, op, 3)) for i, (d, op) in enumerate(RAN)]
    others = [doing for doing in Doing if doing not in {doing for doing, _ in RAN}]
    spans = (*ran, *(TimedSpan(doing=doing, begin=10.0 + i, end=11.0 + i) for i, doing in enumerate(others)))
    told = Told(steps=range(1), schedule=Schedule(4), lane=Lane(node="n0", spans=spans))
    assert from_proto("n0", to_proto(told)) == told


def test_many_spans_come_in_pieces() -> None:
    spans = tuple(TimedSpan(doing=Doing.IDLE, begin=float(i), end=float(i)) for i in range(2 * PIECE + 1))
    told = Told(steps=range(1), schedule=Schedule(1), lane=Lane(node="n0", spans=spans))
    sent = list(to_proto(told))
    assert [len(piece.spans) for piece in sent] == [0, PIECE, PIECE, 1]
    assert from_proto("n0", iter(sent)) == told


def _end_before_begin(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[1].spans[0].end = said[1].spans[0].begin - 1.0


def _overlap(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[1].spans[1].begin -= 0.5


def _no_time(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[1].spans[0].end = nan


def _far_future(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[1].arrivals[0].at = 1e300


def _unknown_doing(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[1].spans[0].doing = 99  # type: ignore[assignment]


def _unknown_kind(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[1].arrivals[0].key.kind = 42  # type: ignore[assignment]


def _wild_stage(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[1].spans[0].stage = 2**32 - 1


def _block(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[1].arrivals[0].key.end = 3


def _no_microbatches(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[0].microbatches = 0


def _steps(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said[0].first_step = 10


def _without_end(said: list[stage_pb2.GetTimetableResponse]) -> None:
    idle = [stage_pb2.TimedSpan(doing=stage_pb2.DOING_IDLE)] * 1000
    said.extend(stage_pb2.GetTimetableResponse(spans=idle) for _ in range(70))


def _nothing(said: list[stage_pb2.GetTimetableResponse]) -> None:
    said.clear()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_end_before_begin, "before it begins"),
        (_overlap, "two of its spans overlap"),
        (_no_time, "the moment nan"),
        (_far_future, "the moment 1e"),
        (_unknown_doing, "does not know"),
        (_unknown_kind, "of kind 42"),
        (_wild_stage, "of number"),
        (_block, "a block that does not exist"),
        (_no_microbatches, "0 microbatches"),
        (_steps, "steps 10 up to 9"),
        (_without_end, "more than 65536 spans"),
        (_nothing, "told nothing"),
    ],
)
def test_what_no_node_says_is_refused(change: Callable[[list[stage_pb2.GetTimetableResponse]], None], why: str) -> None:
    said = pieces()
    change(said)
    with pytest.raises(Untrue, match=why):
        from_proto("n0", iter(said))


def test_a_wait_keeps_the_tensor_that_it_is_for() -> None:
    span = TimedSpan(doing=Doing.BUBBLE, begin=1.0, end=2.0, awaited=activation(0, 1))
    told = Told(steps=range(1), schedule=Schedule(1), lane=Lane(node="n1", spans=(span,)))
    assert from_proto("n1", to_proto(told)).lane.spans == (span,)

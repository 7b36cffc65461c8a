"""Tells whoever looks at the run what this node did in one of its last steps."""

from collections.abc import Callable, Iterator

import grpc

from culm.pipeline.rpc.roles import peer_of
from culm.pipeline.schedule import Schedule
from culm.pipeline.timetable import Lane
from culm.pipeline.timetable_codec import Told, to_proto
from culm.protos import stage_pb2
from culm.protos.stage_pb2_grpc import TimetablesServicer, add_TimetablesServicer_to_server
from culm.stage_server.streams.incoming import SELDOM
from culm.stage_server.streams.stream_bounds import timetable_problem
from culm.stage_server.watching.spans import Kept, lane_of


class Timetables(TimetablesServicer):
    """Translates the service. Each call has a thread of the server's pool."""

    def __init__(self, node: str, schedule: Schedule, end: int, kept: Callable[[], Kept]) -> None:
        """``end``: the run's steps; ``kept``: gives a copy of what is kept."""
        self._node = node
        self._schedule = schedule
        self._end = end
        self._kept = kept

    def serve(self, server: grpc.Server) -> None:
        """Has the server call this."""
        add_TimetablesServicer_to_server(self, server)

    def GetTimetable(  # noqa: N802
        self, request: stage_pb2.GetTimetableRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.GetTimetableResponse]:
        if wrong := timetable_problem(request, self._end):
            SELDOM.say(peer_of(context), f"a GetTimetable is refused: {wrong}")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        kept = self._kept()
        steps, lane = kept.steps, Lane(node=self._node, spans=())
        if request.HasField("step") and request.step in steps:
            lane = lane_of(kept, self._node, request.step)
        yield from to_proto(Told(steps=steps, schedule=self._schedule, lane=lane))

"""What operators ask beside drains: a pause, its end, a checkpoint now. Refused here where the run cannot do it."""

import time

import grpc

from culm.coordinator import limits, saving
from culm.coordinator.edges.leader import Leader
from culm.coordinator.request_bounds import resume_problem, who_problem
from culm.coordinator.requests import Pausing, SaveAsked, Unpausing
from culm.coordinator.state import Phase
from culm.coordinator.takeover import recovering
from culm.pipeline.pause import Pause
from culm.pipeline.rpc.roles import identity_of
from culm.protos import coordinator_pb2 as pb

Context = grpc.aio.ServicerContext[object, object]
Code = grpc.StatusCode

JUST_TAKEN_OVER = "the coordinator has just taken over, and still hears from the nodes: ask again in some seconds"


class OperatorCalls:
    """Decodes, makes one call, encodes: for the service, which has too many calls for one module."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    async def pause(self, request: pb.PauseRequest, context: Context) -> pb.PauseResponse:
        if wrong := who_problem(request.who):
            await context.abort(Code.INVALID_ARGUMENT, wrong)
        await self._refuse_what_is_over(context)
        self._leader.take(Pausing(Pause(_who(request.who, context), time.time())))
        return pb.PauseResponse()

    async def resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:
        if wrong := resume_problem(request):
            await context.abort(Code.INVALID_ARGUMENT, wrong)
        await self._refuse_what_is_over(context)
        budget = request.budget if request.HasField("budget") else None
        stop_at = request.stop_at if request.HasField("stop_at") else None
        if stop_at and stop_at <= time.time():
            await context.abort(Code.INVALID_ARGUMENT, f"{limits.moment(stop_at)} has passed: give a later time")
        if why := limits.refusal(self._leader.state, budget, stop_at):
            await context.abort(Code.FAILED_PRECONDITION, why)
        self._leader.take(Unpausing(_who(request.who, context), budget, stop_at))
        return pb.ResumeResponse()

    async def save(self, request: pb.SaveCheckpointRequest, context: Context) -> pb.SaveCheckpointResponse:
        if wrong := who_problem(request.who):
            await context.abort(Code.INVALID_ARGUMENT, wrong)
        if not self._leader.state.settings.checkpoint_url:
            mend = 'add one with url = "file:///..." or s3:// and start the run anew'
            await context.abort(Code.FAILED_PRECONDITION, f"the job has no [checkpoint] section: {mend}")
        if recovering(self._leader.state):
            await context.abort(Code.UNAVAILABLE, JUST_TAKEN_OVER)
        state = self._leader.state
        if not saving.step_of(state):
            what = f"no step is trained yet, so there is nothing to be saved: the run is {state.phase.value}"
            await context.abort(Code.FAILED_PRECONDITION, what)
        # One that failed in its closing step is trained: its nodes go on writing the last checkpoint (``ending``).
        if state.phase is Phase.FAILED and state.committed < state.steps:
            await context.abort(Code.FAILED_PRECONDITION, f"the run has failed: {state.detail}")
        self._leader.take(SaveAsked(_who(request.who, context)))
        step = saving.step_of(state)
        return pb.SaveCheckpointResponse(step=step, whole=saving.is_whole(state, step))

    async def _refuse_what_is_over(self, context: Context) -> None:
        state = self._leader.state
        if state.phase in (Phase.DONE, Phase.FAILED):
            await context.abort(Code.FAILED_PRECONDITION, f"the run is {state.phase.value}: no step is left to begin")
        if recovering(state):
            await context.abort(Code.UNAVAILABLE, JUST_TAKEN_OVER)
        return


def _who(said: str, context: Context) -> str:
    """By the certificate, where there is one; else as the caller says."""
    return identity_of(context.auth_context()).name or said

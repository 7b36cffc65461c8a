"""Asks a run for a checkpoint now, and waits until it is whole."""

import getpass
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from culm.pipeline.rpc.channel import details
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

POLL_SECONDS = 0.1
TELL_SECONDS = 2.0  # between two lines of progress


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is whole, or why there is none."""

    step: int = 0
    url: str = ""
    problem: str = ""  # empty: it is whole
    refused: bool = False  # the run cannot do it at all; no checkpoint is on its way


def who() -> str:
    """Whoever runs this command, for the run's event log."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"[:200]
    except (OSError, KeyError):  # a container may have no such user
        return socket.gethostname()[:200]


def save_now(stub: CoordinatorStub, seconds: float, tell: Callable[[str], None]) -> Saved:
    """Waits for so long at most. ``tell`` is given a line now and then of how far it is. Raises RpcError if the
    coordinator has gone for good.
    """
    deadline, told_at, told = time.monotonic() + seconds, 0.0, ""
    asked: tuple[int, int] | None = None  # of which term and era it was asked for: another one may know nothing of it
    step, now_at = 0, "nobody has answered yet"
    while True:
        try:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=5.0)
            same = asked == (status.term, status.era)
            if same and status.checkpoint_folder and status.checkpoint >= step:
                return Saved(status.checkpoint, status.checkpoint_folder)
            if not same or (status.phase == "running" and not status.saving):
                step = stub.SaveCheckpoint(pb.SaveCheckpointRequest(who=who()), timeout=5.0).step
                asked = (status.term, status.era)
                status = stub.GetStatus(pb.GetStatusRequest(), timeout=5.0)
            if status.checkpoint_folder and status.checkpoint >= step:
                return Saved(status.checkpoint, status.checkpoint_folder)
            if nobody_writes(status):
                return Saved(problem=f"the run is {status.phase}, and its nodes have gone", refused=True)
            now_at = _progress(status, step)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return Saved(problem=details(error), refused=True)
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            now_at = f"the coordinator does not answer now: {details(error)}"
        now = time.monotonic()
        if now > deadline:
            return Saved(problem=f"no checkpoint is whole after {seconds:g} s: {now_at}")
        if now_at != told or now - told_at > TELL_SECONDS:
            tell(now_at)
            told, told_at = now_at, now
        time.sleep(POLL_SECONDS)


def nobody_writes(status: pb.GetStatusResponse) -> bool:
    """Whether the run is over and its nodes have gone, so that no further checkpoint comes."""
    # A coordinator that takes over a run that is done has its plan at once, and its nodes a moment later.
    return (status.phase == "done" and not status.plan.stages) or (status.phase == "failed" and not status.nodes)


def _progress(status: pb.GetStatusResponse, step: int) -> str:
    fault = f"; {status.checkpoint_fault}" if status.checkpoint_fault else ""
    if status.phase == "waiting":
        return f"the run waits: {status.detail}"
    if status.step < step:
        slow = f", which takes long: waiting for {status.awaited}" if status.awaited else ""
        return f"step {step} runs: its commit asks the nodes for the checkpoint{slow}"
    return f"the nodes write the checkpoint of step {step}{fault}"

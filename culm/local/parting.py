"""What is saved of a run before its processes end, and what is lost: for ``culm down``."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from culm.pipeline.counting import of_chunks
from culm.pipeline.errors import JobError
from culm.pipeline.rpc.channel import details
from culm.protos import coordinator_pb2 as pb
from culm.terminal.client import connect
from culm.terminal.save_now import nobody_writes, save_now

SECONDS = 60.0  # that a checkpoint may take before the processes end all the same


@dataclass(frozen=True, slots=True)
class Parting:
    """``text``: what is saved up to which step, or what is lost, in one line. ``lost_steps``: 0 where nothing is."""

    text: str
    lost_steps: int = 0


def part(coordinator: str, seconds: float = SECONDS, tell: Callable[[str], None] = lambda line: None) -> Parting:
    """Has the run at this address save what it has trained, where it can, and says what is left of it.

    Ends nothing. Waits for ``seconds`` at most; ``tell`` is given lines of progress. Raises nothing: a coordinator that
    does not answer is told of in the text.
    """
    try:
        channel, stub = connect(coordinator)
    except JobError as error:
        return Parting(f"nothing can be saved: {error.what}")
    with channel:
        try:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=5.0)
            if not _can_save(status):
                return _left(status)
            saved = save_now(stub, seconds, tell)
            if not saved.problem:
                return Parting(f"saved up to step {saved.step}: {saved.url}")
            return _left(stub.GetStatus(pb.GetStatusRequest(), timeout=5.0), saved.problem)
        except grpc.RpcError as error:
            return Parting(f"nothing can be saved: {details(error)}")


def _can_save(status: pb.GetStatusResponse) -> bool:
    """Whether nodes are there that save what the run has trained. After its last step they write it unasked."""
    trained = status.phase in ("done", "failed") and status.step == status.steps
    return status.phase in ("running", "paused") or (trained and not nobody_writes(status))


def _left(status: pb.GetStatusResponse, why: str = "") -> Parting:
    """What there is of a run that saves nothing now."""
    done = status.phase == "done"
    if done and not status.plan.stages:
        return Parting(f"the run is over: {status.detail}")
    step = status.step
    if not step:
        return Parting(f"no {of_chunks(status.graph.chunks).step} is trained yet, so nothing is lost")
    if status.checkpoint_folder and status.checkpoint >= step:
        return Parting(f"saved up to step {status.checkpoint}: {status.checkpoint_folder}")
    because = f" ({why})" if why else ""
    if not status.checkpoint_folder:
        fetch = "; culm weights --out FILE would have fetched them" if done else ""
        return Parting(f"no checkpoint: {_steps(step, status)} lost{because}{fetch}", step)
    lost = step - status.checkpoint
    saved = f"saved up to step {status.checkpoint}: {status.checkpoint_folder}"
    return Parting(f"{saved}; {_steps(lost, status)} lost that came after it{because}", lost)


def _steps(count: int, status: pb.GetStatusResponse) -> str:
    step = of_chunks(status.graph.chunks).step
    return f"1 {step} is" if count == 1 else f"{count} {step}s are"

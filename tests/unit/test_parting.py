"""What is saved of a run whose processes are to end, over a real socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest

from culm.local.parting import part
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server

FOLDER = "file:///culm/step-00000008"


@dataclass(eq=False)
class Coordinator(CoordinatorServicer):
    """Answers with these statuses, the last one again and again."""

    statuses: list[pb.GetStatusResponse] = field(default_factory=list)
    refuses: str = ""
    asked: int = 0
    step: int = 0  # of the checkpoint that whoever asks gets

    def GetStatus(  # noqa: N802
        self, request: pb.GetStatusRequest, context: grpc.ServicerContext
    ) -> pb.GetStatusResponse:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def SaveCheckpoint(  # noqa: N802
        self, request: pb.SaveCheckpointRequest, context: grpc.ServicerContext
    ) -> pb.SaveCheckpointResponse:
        self.asked += 1
        if self.refuses:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuses)
        return pb.SaveCheckpointResponse(step=self.step)


@pytest.fixture
def served() -> Iterator[tuple[Coordinator, str]]:
    coordinator, server = Coordinator(), grpc.server(ThreadPoolExecutor(4))  # type: ignore[abstract]
    add_CoordinatorServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield coordinator, f"127.0.0.1:{port}"
    server.stop(None).wait()


def status(phase: str = "running", step: int = 7, checkpoint: int = 0) -> pb.GetStatusResponse:
    folder = FOLDER if checkpoint else ""
    return pb.GetStatusResponse(
        phase=phase, step=step, steps=90, term=1, checkpoint=checkpoint, checkpoint_folder=folder, saving=True
    )


def ended(phase: str, checkpoint: int) -> pb.GetStatusResponse:
    """Of a run whose last step is trained, and whose nodes are there."""
    over = status(phase, 90, checkpoint)
    over.plan.stages.add()
    over.nodes.add(id="n0")
    return over


def test_what_was_trained_is_saved_first(served: tuple[Coordinator, str]) -> None:
    coordinator, address = served
    coordinator.statuses, coordinator.step = [status(), status(), status(step=8), status(step=8, checkpoint=8)], 8
    told: list[str] = []
    parting = part(address, 30.0, told.append)
    assert (parting.text, parting.lost_steps) == (f"saved up to step 8: {FOLDER}", 0)
    assert coordinator.asked == 1
    assert told == ["the nodes write the checkpoint of step 8"]


def test_without_checkpoints_it_is_said_how_much_is_lost(served: tuple[Coordinator, str]) -> None:
    coordinator, address = served
    coordinator.statuses = [status()]
    coordinator.refuses = "the job has no [checkpoint] section: add one"
    parting = part(address)
    assert parting.lost_steps == 7
    assert parting.text == "no checkpoint: 7 steps are lost (the job has no [checkpoint] section: add one)"


def test_a_storage_that_takes_too_long_is_not_waited_for(served: tuple[Coordinator, str]) -> None:
    coordinator, address = served
    coordinator.statuses, coordinator.step = [status(step=9, checkpoint=8)], 10
    parting = part(address, 0.0)
    assert parting.lost_steps == 1
    assert parting.text.startswith(f"saved up to step 8: {FOLDER}; 1 step is lost that came after it (no checkpoint is")


@pytest.mark.parametrize("phase", ["done", "failed"])
def test_the_last_checkpoint_of_a_run_that_has_just_ended_is_waited_for(
    phase: str, served: tuple[Coordinator, str]
) -> None:
    """Its nodes were ended while they wrote it, and all that came after the checkpoint before was lost."""
    coordinator, address = served
    writing, whole = ended(phase, checkpoint=80), ended(phase, checkpoint=90)
    coordinator.statuses, coordinator.step = [writing, writing, writing, whole], 90
    told: list[str] = []
    parting = part(address, 30.0, told.append)
    assert (parting.text, parting.lost_steps) == (f"saved up to step 90: {FOLDER}", 0)
    assert told == ["the nodes write the checkpoint of step 90"]


@pytest.mark.parametrize(
    ("phase", "text"),
    [("done", "the run is over: "), ("failed", f"saved up to step 80: {FOLDER}; 10 steps are lost that came after it")],
)
def test_a_run_that_has_ended_is_not_waited_for_once_its_nodes_have_gone(
    phase: str, text: str, served: tuple[Coordinator, str]
) -> None:
    coordinator, address = served
    gone = status(phase, 90, 80)
    coordinator.statuses, coordinator.step = [gone], 90
    assert part(address).text == text
    assert coordinator.asked == 0
    coordinator.statuses = [ended(phase, checkpoint=80), ended(phase, checkpoint=80), gone]
    assert part(address).text.startswith(text)


@pytest.mark.parametrize(
    ("now", "text", "lost"),
    [
        (status("waiting", 0), "no step is trained yet, so nothing is lost", 0),
        (status("waiting", 8, 8), f"saved up to step 8: {FOLDER}", 0),
        (status("done", 90), "the run is over: ", 0),
    ],
)
def test_a_run_that_saves_nothing_now(
    served: tuple[Coordinator, str], now: pb.GetStatusResponse, text: str, lost: int
) -> None:
    coordinator, address = served
    coordinator.statuses = [now]
    parting = part(address)
    assert (parting.text, parting.lost_steps) == (text, lost)
    assert coordinator.asked == 0


def test_a_coordinator_that_does_not_answer_is_told_of() -> None:
    assert part("127.0.0.1:1").text.startswith("nothing can be saved: ")

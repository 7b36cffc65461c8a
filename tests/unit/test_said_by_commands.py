"""What culm pause and culm drain say of a run, over a real socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest

from culm.__main__ import main
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server


@dataclass(eq=False)
class Coordinator(CoordinatorServicer):
    """Answers with these statuses, the last one again and again."""

    statuses: list[pb.GetStatusResponse] = field(default_factory=list)
    events: list[pb.ListEventsResponse] = field(default_factory=list)

    def GetStatus(  # noqa: N802
        self, request: pb.GetStatusRequest, context: grpc.ServicerContext
    ) -> pb.GetStatusResponse:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def ListEvents(  # noqa: N802
        self, request: pb.ListEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ListEventsResponse]:
        yield from self.events

    def Pause(self, request: pb.PauseRequest, context: grpc.ServicerContext) -> pb.PauseResponse:  # noqa: N802
        return pb.PauseResponse()

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainResponse:  # noqa: N802
        return pb.DrainResponse()


@pytest.fixture
def served() -> Iterator[tuple[Coordinator, str]]:
    coordinator, server = Coordinator(), grpc.server(ThreadPoolExecutor(4))  # type: ignore[abstract]
    add_CoordinatorServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield coordinator, f"127.0.0.1:{port}"
    server.stop(None).wait()


def status(phase: str = "running", *nodes: str, pause: pb.Pause | None = None) -> pb.GetStatusResponse:
    here = [pb.NodeStatus(id=name, incarnation=1) for name in nodes]
    return pb.GetStatusResponse(phase=phase, detail="as it is", step=7, steps=90, nodes=here, pause=pause)


@pytest.mark.parametrize(
    ("phase", "after", "said"),
    [("running", "paused", "step 8 of 90 runs: its commit pauses the run\n"), ("waiting", "waiting", "")],
)
def test_a_step_is_said_to_run_where_one_does(
    phase: str, after: str, said: str, served: tuple[Coordinator, str], capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator, address = served
    coordinator.statuses = [status(phase), status(after, pause=pb.Pause(who="ada"))]
    assert main(["pause", "--coordinator", address]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("step 7 of 90: as it is\n", said)


def event(kind: str, text: str, node: str = "n1") -> pb.ListEventsResponse:
    return pb.ListEventsResponse(kind=kind, text=text, fields={"node": node})


LEFT, LOST = event("left", "n1 has left: drained"), event("lost", "n1 is lost: its process ended")


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        ([LOST, LEFT, event("lost", "n2 is lost", "n2")], 0, "n1 has left"),
        ([LEFT, LOST], 1, "culm drain: it has not handed over: n1 is lost: its process ended; see culm events"),
        ([], 0, "n1 has left"),
    ],
)
def test_a_node_that_was_lost_meanwhile_is_not_said_to_have_left(
    events: list[pb.ListEventsResponse],
    code: int,
    said: str,
    served: tuple[Coordinator, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    coordinator, address = served
    coordinator.statuses, coordinator.events = [status("running", "n0", "n1"), status("running", "n0")], events
    assert main(["drain", "n1", "--coordinator", address]) == code
    told = capsys.readouterr()
    assert said in (told.err if code else told.out).splitlines()

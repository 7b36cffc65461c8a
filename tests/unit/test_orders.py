"""How a node attends its coordinator, and until when it waits for one."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from culm.local.authority import issue, make_authority
from culm.pipeline.patience import Patience
from culm.pipeline.rpc.tls import add_port
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from culm.stage_server.streams.orders import Orders

DEADLINE = 60.0  # seconds until a test that hangs fails; no test waits for it


class OneStream(CoordinatorServicer):
    """A coordinator that ends the stream of a node that has announced itself."""

    def Attend(  # noqa: N802
        self, request_iterator: Iterator[pb.AttendRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AttendResponse]:
        next(request_iterator)
        yield pb.AttendResponse(welcome=pb.Welcome(term=1))
        next(request_iterator)


class Dismissing(CoordinatorServicer):
    """A coordinator that dismisses whoever has announced itself, and counts the streams."""

    def __init__(self) -> None:
        self.streams = 0

    def Attend(  # noqa: N802
        self, request_iterator: Iterator[pb.AttendRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AttendResponse]:
        self.streams += 1
        next(request_iterator)
        yield pb.AttendResponse(welcome=pb.Welcome(term=1))
        next(request_iterator)
        yield pb.AttendResponse(dismiss=pb.Dismiss(why="drained"))


class Lower(CoordinatorServicer):
    """A coordinator of term 1, which ends no stream. ``left``: the node has opened a second one."""

    def __init__(self) -> None:
        self.streams = 0
        self.left = threading.Event()

    def Attend(  # noqa: N802
        self, request_iterator: Iterator[pb.AttendRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AttendResponse]:
        self.streams += 1
        if self.streams > 1:
            self.left.set()
        yield pb.AttendResponse(welcome=pb.Welcome(term=1))
        for _ in request_iterator:
            pass


class Announcing:
    """A node that does something once it is welcomed, and then announces itself."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def join(self) -> pb.Join:
        return pb.Join(node="n0", incarnation=1)

    def attached(self, announce: Callable[[list[pb.AttendRequest]], None]) -> None:
        self._act()
        announce([pb.AttendRequest(heartbeat=pb.Heartbeat())])

    def heartbeat(self) -> pb.Heartbeat:
        return pb.Heartbeat()

    def order(self, order: pb.AttendResponse) -> None:
        return


class Late(Announcing):
    """A node that announces itself once more on its first stream, when it already opens the second one."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.orders: Orders | None = None
        self.attended: list[bool] = []  # after each late announcement
        self.reopened = threading.Event()
        self._first: Callable[[list[pb.AttendRequest]], None] | None = None

    def join(self) -> pb.Join:
        if self._first is not None and self.orders is not None:
            self._first([pb.AttendRequest(heartbeat=pb.Heartbeat())])
            self.attended.append(self.orders.attends)
            self.reopened.set()
        return super().join()

    def attached(self, announce: Callable[[list[pb.AttendRequest]], None]) -> None:
        self._first = self._first or announce
        super().attached(announce)


def test_a_node_whose_certificate_breaks_waits_no_longer_than_for_any_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It dialled ten times a second for ever, with a line of the log each time."""
    make_authority(tmp_path)
    own = issue(tmp_path, "stage", "stage", 1.0)
    server = grpc.server(ThreadPoolExecutor(2))
    add_CoordinatorServicer_to_server(OneStream(), server)  # type: ignore[abstract]
    monkeypatch.setenv("CULM_TLS_DIR", str(issue(tmp_path, "coordinator", "coordinator", 1.0)))
    address = f"127.0.0.1:{add_port(server, '127.0.0.1:0', insecure=False)}"
    server.start()
    monkeypatch.setenv("CULM_TLS_DIR", str(own))
    ended, why = threading.Event(), []

    def end(text: str) -> None:
        why.append(text)
        ended.set()

    node = Announcing(lambda: (own / "tls.crt").write_text("no certificate"))
    orders = Orders(address, node, DEADLINE, end, Patience(), 1.0, end)
    with caplog.at_level(logging.WARNING, "culm.orders"):
        orders.start()
        try:
            assert ended.wait(DEADLINE), caplog.text[-1000:]
        finally:
            orders.close()
            server.stop(None)
    assert [text.partition(" for 1 s: ")[0] for text in why] == [f"no coordinator at {address}"]
    assert caplog.text.count("this is not a certificate") == 1, "once, and not at each attempt"


def test_a_node_that_is_dismissed_opens_no_other_stream(caplog: pytest.LogCaptureFixture) -> None:
    """It attended again every half second until it had ended, and said each time that the coordinator had gone."""
    coordinator = Dismissing()  # type: ignore[abstract]
    server = grpc.server(ThreadPoolExecutor(2))
    add_CoordinatorServicer_to_server(coordinator, server)
    address = f"127.0.0.1:{add_port(server, '127.0.0.1:0', insecure=True)}"
    server.start()
    orders = Orders(address, Announcing(lambda: None), DEADLINE, lambda why: None, Patience())
    with caplog.at_level(logging.WARNING, "culm.orders"):
        orders.start()
        try:
            (attending,) = (thread for thread in threading.enumerate() if thread.name == "orders")
            attending.join(DEADLINE)
            assert not attending.is_alive()
        finally:
            orders.close()
            server.stop(None)
    assert coordinator.streams == 1
    assert caplog.text == ""


def test_an_announcement_that_comes_after_the_end_of_its_stream_is_none() -> None:
    """A node that had built its model just then counted as attended, and said twice why it was refused."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_CoordinatorServicer_to_server(OneStream(), server)  # type: ignore[abstract]
    address = f"127.0.0.1:{add_port(server, '127.0.0.1:0', insecure=True)}"
    server.start()
    node = Late()
    node.orders = Orders(address, node, DEADLINE, lambda why: None, Patience())
    node.orders.start()
    try:
        assert node.reopened.wait(DEADLINE)
    finally:
        node.orders.close()
        server.stop(None)
    assert not any(node.attended)


def test_a_higher_term_that_comes_before_the_announcement_is_not_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The node stayed with the lower coordinator, whose orders it refused, until another Hello came."""
    coordinator = Lower()  # type: ignore[abstract]
    server = grpc.server(ThreadPoolExecutor(2))
    add_CoordinatorServicer_to_server(coordinator, server)
    address = f"127.0.0.1:{add_port(server, '127.0.0.1:0', insecure=True)}"
    server.start()
    orders = Orders(address, Announcing(lambda: orders.leave_lower(2)), DEADLINE, lambda why: None, Patience())
    with caplog.at_level(logging.WARNING, "culm.orders"):
        orders.start()
        try:
            assert coordinator.left.wait(DEADLINE)
        finally:
            orders.close()
            server.stop(None)
    assert "this node leaves the coordinator of term 1" in caplog.text

"""A tensor worker as a function of AWS Lambda: invoked over its runtime interface, it works for a graph server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue

import pytest

from culm.local.cluster import LocalCluster
from culm.oracle.plain_loop import run_plain
from culm.protos import coordinator_pb2 as pb
from culm.tensor_worker.runtime import asked, serve
from culm.tensor_worker.worker import TensorWorker, WorkerSettings
from tests.integration.test_tensor_workers import OnceWorkersAreThere, job, trained


class Service:
    """Stands in for the service: gives out invocations, and keeps what is answered."""

    def __init__(self) -> None:
        self.events: SimpleQueue[str] = SimpleQueue()
        self.answers: list[tuple[str, dict[str, object]]] = []  # "response" or "error", and its body
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = service.events.get().encode()
                self.send_response(200)
                self.send_header("Lambda-Runtime-Aws-Request-Id", "1")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.answers.append((self.path.rpartition("/")[2], body))
                self.send_response(202)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()


def test_an_invocation_works_for_a_server_and_changes_no_bit(tmp_path: Path) -> None:
    service = Service()
    worker = TensorWorker(WorkerSettings(coordinator="", name="function", runtime=service.address))
    once_there = OnceWorkersAreThere(tmp_path / "run", 1)
    invoked = threading.Event()
    count = 40

    def strike(cluster: LocalCluster, status: pb.GetStatusResponse) -> None:
        if not invoked.is_set() and (addresses := [node.address for node in status.nodes if node.address]):
            invoked.set()
            for i in range(count):
                service.events.put(json.dumps({"server": addresses[i % len(addresses)], "seconds": 1.0}))
        once_there(cluster, status)

    with service.running():
        threading.Thread(target=serve, args=(service.address, worker.work_for, count), daemon=True).start()
        asked_for = job(steps=400, workers=0)
        outcome = trained(asked_for, tmp_path / "run", strike)
    assert outcome.sha256 == run_plain(asked_for).sha256
    assert worker.tasks > 0
    kinds = {kind for kind, _ in service.answers}
    assert "response" in kinds, "an invocation that ends with its time answers"


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"server": 3}', b'{"server": "nowhere"}'])
def test_an_event_without_a_server_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(ValueError, match="names no graph server"):
        asked(body, "")


def test_no_task_begins_when_the_service_is_about_to_end_the_process() -> None:
    import time

    soon = str(int((time.time() + 0.5) * 1e3))
    assert asked(b'{"server": "127.0.0.1:1", "seconds": 60}', soon).until <= time.monotonic()

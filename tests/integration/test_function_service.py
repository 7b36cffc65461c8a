"""A tensor worker as a function of AWS Lambda: invoked over its runtime interface, it works for a graph server."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.oracle.plain_loop import run_plain
from culm.protos import coordinator_pb2 as pb
from culm.tensor_worker.runtime import asked
from tests.integration.test_tensor_workers import ROOT, OnceWorkersAreThere, job, trained


class Service:
    """Stands in for the service: invokes the function again and again, for the graph servers that it is told of."""

    def __init__(self) -> None:
        self.servers: list[str] = []  # their addresses
        self.answers: list[tuple[str, dict[str, object]]] = []  # "response" or "error", and its body
        service, numbers = self, count()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server = service.servers[next(numbers) % len(service.servers)]
                body = json.dumps({"server": server, "seconds": 1.0}).encode()
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


def test_invocations_work_for_servers_and_change_no_bit(tmp_path: Path) -> None:
    """The function is a process, which the service ends when it likes."""
    service = Service()
    once_there = OnceWorkersAreThere(tmp_path / "run", 1)
    function: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-m", "culm", "tensor-worker"]
    told = os.environ | {"AWS_LAMBDA_RUNTIME_API": service.address}

    def strike(cluster: LocalCluster, status: pb.GetStatusResponse) -> None:
        service.servers = [node.address for node in status.nodes if node.address] or service.servers
        if service.servers and not function:
            function.append(subprocess.Popen(command, cwd=ROOT, env=told))
        once_there(cluster, status)

    asked_for = job(steps=100, workers=0)
    with service.running():
        try:
            outcome = trained(asked_for, tmp_path / "run", strike)
        finally:
            for process in function:
                process.kill()
                process.wait()
    assert outcome.sha256 == run_plain(asked_for).sha256
    done = [body["tasks"] for kind, body in service.answers if kind == "response"]
    assert sum(map(int, map(str, done))) > 0, "an invocation that ends with its time answers"


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"server": 3}', b'{"server": "nowhere"}'])
def test_an_event_without_a_server_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(ValueError, match="names no graph server"):
        asked(body, "")


def test_an_event_that_says_for_no_time_is_refused_in_words() -> None:
    """The worker's timer raised, and the invocation went on until the service ended the process."""
    with pytest.raises(ValueError, match="for how long"):
        asked(b'{"server": "127.0.0.1:1", "seconds": NaN}', "")


def test_no_task_begins_when_the_service_is_about_to_end_the_process() -> None:
    soon = str(int((time.time() + 0.5) * 1e3))
    assert asked(b'{"server": "127.0.0.1:1", "seconds": 60}', soon).until <= time.monotonic()

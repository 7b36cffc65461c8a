"""Why nobody answers: a dropped packet is no fault of TLS. Real sockets, real certificates, a route that drops."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from culm.local.authority import issue, make_authority
from culm.pipeline.rpc.probe import find_obstacle
from culm.pipeline.rpc.tls import VARIABLE, add_port

ROOT = Path(__file__).parents[2]
PATIENCE = 0.5  # long enough on loopback for what answers; what does not answer takes all of it


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder a role."""
    folder = tmp_path / "certs"
    make_authority(folder)
    for role in ("coordinator", "stage"):
        issue(folder, role, role, 1.0)
    return folder


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Somebody who is no server of Culm. Accepts, and does that with each connection."""
    kept: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it was closed
                return
            kept.append(connection)
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, identity: Path | None) -> Iterator[str]:
    """A gRPC server, with these certificates or without TLS."""
    with monkeypatch.context() as environment:
        environment.delenv(VARIABLE, raising=False)
        if identity is not None:
            environment.setenv(VARIABLE, str(identity))
        with ThreadPoolExecutor(2) as pool:
            server = grpc.server(pool)
            port = add_port(server, "127.0.0.1:0")
            server.start()
            yield f"127.0.0.1:{port}"
            server.stop(None).wait()


def what(address: str, certificates: Path | None, role: str = "coordinator", patience: float = 10.0) -> str:
    return str(find_obstacle(address, role, certificates, patience) or "")


def test_a_server_that_answers_is_no_obstacle(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, certificates / "coordinator") as address:
        assert what(address, certificates / "stage") == ""
    with serving(monkeypatch, None) as address:
        assert what(address, None) == ""


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert "nothing listens at port" in what(address, None)


def test_a_name_that_nobody_knows() -> None:
    assert "the name nobody.invalid is not known" in what("nobody.invalid:7070", None)


@pytest.mark.parametrize("tls", [False, True])
def test_a_listener_that_accepts_and_says_nothing(certificates: Path, tls: bool) -> None:
    with listening(lambda connection: None) as address:
        told = what(address, certificates / "stage" if tls else None, patience=PATIENCE)
    assert "accepted, but nothing is sent for 0.5 s" in told
    assert "certificate" not in told


def test_a_connection_that_is_reset_in_the_handshake(certificates: Path) -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()

    with listening(reset) as address:
        told = what(address, certificates / "stage")
    assert "reset during the TLS handshake" in told or "closed during the TLS handshake" in told


def test_tls_at_one_end_alone(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, None) as address:
        assert "the server there answers, but without TLS" in what(address, certificates / "stage")
    with serving(monkeypatch, certificates / "coordinator") as address:
        assert "the server there answers with TLS alone" in what(address, None)
    with listening(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        assert "a server that is not Culm's" in what(address, None)


def test_certificates_that_do_not_fit(certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = tmp_path / "stranger"
    make_authority(stranger)
    issue(stranger, "stage", "stage", 1.0)
    with serving(monkeypatch, certificates / "coordinator") as address:
        assert "is not of the authority in" in what(address, stranger / "stage")
        assert "it does not name stage.culm" in what(address, certificates / "stage", role="stage")
        mixed = tmp_path / "mixed"  # it trusts that server, which does not trust it
        shutil.copytree(stranger / "stage", mixed)
        shutil.copy(certificates / "ca.crt", mixed / "ca.crt")
        assert "the server refuses the certificate in" in what(address, mixed)
    issue(certificates, "coordinator", "coordinator", -0.001)
    with serving(monkeypatch, certificates / "coordinator") as address:
        assert "the server's certificate has expired" in what(address, certificates / "stage")


@pytest.fixture
def blackhole() -> Iterator[list[str]]:
    """The words that run a command where everything to 10.9.9.0/24 is dropped: a namespace with a cable to nobody."""
    name = f"culm-drop-{os.getpid()}"
    ip = shutil.which("ip")
    if os.geteuid() != 0 or ip is None:
        pytest.skip("needs root and iproute2: it makes a network namespace")
    inside = [ip, "netns", "exec", name]
    subprocess.run([ip, "netns", "add", name], check=True)
    try:
        for words in (
            "link set lo up",
            "link add nobody type veth peer name end",
            "link set end up",
            "addr add 10.9.9.1/24 dev nobody",
            "link set nobody up arp off",  # nothing asks who has an address: frames go out, and are dropped
        ):
            subprocess.run([*inside, ip, *words.split()], check=True)
        yield inside
    finally:
        subprocess.run([ip, "netns", "delete", name], check=True)


@pytest.mark.slow
def test_dropped_packets_are_not_reported_as_a_fault_of_tls(blackhole: list[str], certificates: Path) -> None:
    stage = ("stage", "--coordinator", "10.9.9.9:7070", "--listen", "127.0.0.1:0", "--connect-timeout", "1")
    for identity in (None, certificates / "stage"):
        environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
        if identity is not None:
            environment[VARIABLE] = str(identity)
        for words in ((*stage, "--notices", "none"), ("status", "--coordinator", "10.9.9.9:7070")):
            command = [*blackhole, sys.executable, "-m", "culm", *words]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
            assert done.returncode == 2, done.stderr
            told = done.stderr.strip().split("\n")[-1]
            assert "packets are dropped" in told
            assert "open port 7070 in firewalls and network policies" in told
            assert "TLS" not in told
            assert "certificate" not in told


def test_a_route_that_leads_nowhere(blackhole: list[str]) -> None:
    code = (
        "from culm.pipeline.rpc.probe import find_obstacle; print(find_obstacle('10.8.8.8:7070', 'coordinator', None))"
    )
    done = subprocess.run(
        [*blackhole, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "no route leads to 10.8.8.8" in done.stdout

"""Sockets of one machine: whole messages in order, one reason for an end, one user, and gRPC where there is none."""

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from culm.pipeline.rpc.tls import VARIABLE
from culm.stage_server.one_machine.local_streams import (
    AT_ONCE,
    LENGTH,
    LONGEST,
    Context,
    LocalCall,
    LocalServer,
    Refused,
    listen,
)

ADDRESS = f"10.0.0.1:{os.getpid()}"  # a name of its own in each test process
NOBODY = 65534
Handler = Callable[[Iterator[bytes], Context], Iterator[bytes]]


def echo(requests: Iterator[bytes], _: Context) -> Iterator[bytes]:
    return (request * 2 for request in requests)


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], LocalServer]]:
    servers: list[LocalServer] = []

    def begin(handler: Handler) -> LocalServer:
        servers.append(LocalServer(ADDRESS, handler))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def call() -> LocalCall:
    found = LocalCall.to(ADDRESS)
    assert found is not None
    return found


def raw() -> socket.socket:
    """A connection by hand."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(f"\0culm/{ADDRESS}")
    return end


def test_messages_of_every_size_come_back_in_order(serve: Callable[[Handler], LocalServer]) -> None:
    serve(echo)
    messages = [b"", b"x", b"y" * 300_000, b"z" * (LONGEST // 2), b"end"]
    with call() as stream:
        assert list(stream.exchange(messages)) == [message * 2 for message in messages]


def test_a_refusal_gives_its_reason_after_what_was_answered(serve: Callable[[Handler], LocalServer]) -> None:
    def refuse(requests: Iterator[bytes], context: Context) -> Iterator[bytes]:
        yield next(requests)
        context.abort(None, "the run is another")

    serve(refuse)
    with call() as stream:
        answers = stream.exchange([b"one"] * 10_000)
        assert next(answers) == b"one"
        with pytest.raises(Refused, match="the run is another"):
            next(answers)


def test_a_message_that_is_too_long_is_refused_before_it_is_read(serve: Callable[[Handler], LocalServer]) -> None:
    wrong: list[str] = []

    def take(requests: Iterator[bytes], _: Context) -> Iterator[bytes]:
        try:
            yield from requests
        except ValueError as error:
            wrong.append(str(error))

    serve(take)
    with raw() as end:
        end.sendall(LENGTH.pack(LONGEST + 1))
        assert end.recv(1) == b""
    assert wrong == [f"a message of {LONGEST + 1} bytes, of which {LONGEST} are allowed"]


def test_a_small_message_goes_at_once_until_the_socket_is_full_and_none_goes_in_part(
    serve: Callable[[Handler], LocalServer],
) -> None:
    read = threading.Event()

    def take(requests: Iterator[bytes], _: Context) -> Iterator[bytes]:
        read.wait()
        return (request[:1] for request in requests)

    serve(take)
    with call() as stream:
        messages = [bytes((number,)) * (AT_ONCE - LENGTH.size) for number in range(200)]
        assert not stream.send_at_once(messages[0] + b"x")
        sent = list(itertools.takewhile(stream.send_at_once, messages))
        assert 0 < len(sent) < len(messages)
        assert not stream.send_at_once(messages[0])
        read.set()
        assert list(stream.exchange([b"last"])) == [*(message[:1] for message in sent), b"l"]
    assert not stream.send_at_once(b"x")


@pytest.mark.parametrize("part", [b"\5\0", LENGTH.pack(5), LENGTH.pack(5) + b"ab"])
def test_what_breaks_within_a_message_is_no_end(part: bytes, serve: Callable[[Handler], LocalServer]) -> None:
    wrong: list[type[Exception]] = []

    def take(requests: Iterator[bytes], _: Context) -> Iterator[bytes]:
        try:
            yield from requests
        except OSError as error:
            wrong.append(type(error))

    serve(take)
    with raw() as end:
        end.sendall(part)
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b""
    assert wrong == [ConnectionResetError]


def test_a_closed_server_ends_its_streams_and_leaves_its_name(serve: Callable[[Handler], LocalServer]) -> None:
    first = serve(echo)
    with call() as stream:
        answers = stream.exchange(iter([b"one"]))
        assert next(answers) == b"oneone"
        first.close()
        assert list(answers) == []
    assert LocalCall.to(ADDRESS) is None
    serve(echo)
    with call() as stream:
        assert list(stream.exchange([b"two"])) == [b"twotwo"]


def test_a_name_is_served_once(serve: Callable[[Handler], LocalServer]) -> None:
    serve(echo)
    assert listen(ADDRESS, echo) is None


def test_where_certificates_are_in_use_nobody_listens_and_nobody_calls(
    serve: Callable[[Handler], LocalServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve(echo)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert LocalCall.to(ADDRESS) is None
    assert listen("10.0.0.1:0", echo) is None


@pytest.mark.skipif(os.getuid() != 0, reason="root alone may become another user")
def test_another_user_is_not_served(serve: Callable[[Handler], LocalServer]) -> None:
    serve(echo)
    code = (
        "import os, socket; end = socket.socket(socket.AF_UNIX); "
        f"os.setuid({NOBODY}); end.connect('\\0culm/{ADDRESS}'); print(end.recv(1))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "b''\n"


@pytest.mark.skipif(os.getuid() != 0, reason="root alone may become another user")
def test_a_server_of_another_user_is_not_called() -> None:
    code = (
        f"import os, socket, sys; os.setuid({NOBODY}); end = socket.socket(socket.AF_UNIX); "
        f"end.bind('\\0culm/{ADDRESS}'); end.listen(); print('here', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "here\n"
        assert LocalCall.to(ADDRESS) is None

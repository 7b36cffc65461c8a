"""Deliver streams between two nodes of one machine, through a socket of the kernel in place of gRPC.

A message costs gRPC some thirty changes of thread on its way; here it wakes one thread of its receiver, and a small one
none of its sender's. On two cores that four nodes share, the steps of ``examples/stdlib_gpt.toml`` take 3 % less time
for it.

Nothing else depends on it: where a socket is refused, or this module deleted, every stream goes over gRPC.
"""

# A stream, from n0 to n1, whose server listens on port 7000:
#
#     n0                                                n1
#      │ connects to the socket named 10.0.0.1:7000 ───▶│ accepts it, if n0 is of the same user
#      │ requests, each behind its length ─────────────▶│ the same bytes as over gRPC, to the same reader
#      │ ◀─────────── answers, each behind its length ──┤
#      │ shuts its side: no more requests ─────────────▶│ answers what is left
#      │ ◀──────── a refusal, if n1 ended the stream ───┤
#      │ ◀────────────────────────── closes the socket ─┤
#
# The socket's name is in the abstract namespace (Linux), which belongs to a network namespace as ports do. So whoever
# can connect to the name could connect to the port, and containers without a common network do not meet. The kernel
# tells each end the user of the other one, and only the own user counts. A process of the same user could read this
# node's memory anyhow, so the stream needs no certificate; but where certificates are in use nobody listens here, so
# that they go on to mean what they say.
#
# A process that ends closes its sockets, however it ends: its streams break at once, as over gRPC. One that is frozen
# breaks nothing here. Its heartbeats stop, which counts first over gRPC as well (``Patience``).

import contextlib
import io
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NoReturn, Protocol

from culm.pipeline.rpc.tls import folder

log = logging.getLogger("culm.local")

LENGTH = struct.Struct("<I")  # before each message
REFUSAL = 1 << 31  # in a length: what follows says why the stream is ended
LONGEST = 1 << 22  # bytes of a message, as over gRPC
PEER = struct.Struct("iII")  # what the kernel says of the other end: process, user, group
AT_ONCE = 1 << 15  # bytes, with the length, that Linux takes in one buffer: whole, or not at all where there is no room
BACKLOG = 128  # connections that wait for ``accept``: a plan may bring as many at once as there are nodes


class Refused(ValueError):
    """The receiver has ended the stream, and says why."""


class Context(Protocol):
    """What a stream's reader asks about it; ``grpc.ServicerContext`` gives the same."""

    def auth_context(self) -> Any: ...

    def peer(self) -> str: ...

    def abort(self, code: Any, details: str) -> NoReturn: ...


Handler = Callable[[Iterator[bytes], Context], Iterable[bytes]]  # the requests' bytes, to the answers' bytes


def _name(address: str) -> str:
    return f"\0culm/{address}"


def _is_own_user(end: socket.socket) -> bool:
    _, user, _ = PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return bool(user == os.getuid())


def _framed(message: bytes, mark: int = 0) -> bytes:
    return LENGTH.pack(len(message) | mark) + message


def _send(end: socket.socket, message: bytes, mark: int = 0) -> None:
    end.sendall(_framed(message, mark))


class _Answers(io.RawIOBase):
    """What comes to the end of a socket through which requests go.

    A thread that waits in ``recv`` is woken by Linux each time the other end has read a request: there is room to write
    again. It finds nothing and waits on, but takes a processor for that, maybe from whoever has the request. One that
    waits in ``poll`` is woken by what it waits for.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._poll.poll()
        return self._end.recv_into(buffer)


def _messages(incoming: BinaryIO) -> Iterator[bytes]:
    """Until the other end sends no more. Raises Refused, OSError, or ValueError for what no node sends."""
    with incoming:
        while head := incoming.read(LENGTH.size):
            (length,) = LENGTH.unpack(head.ljust(LENGTH.size, b"\0"))
            size = length & ~REFUSAL
            if size > LONGEST:
                raise ValueError(f"a message of {size} bytes, of which {LONGEST} are allowed")
            message = incoming.read(size)
            if len(head) < LENGTH.size or len(message) < size:
                raise ConnectionResetError("it broke within a message")
            if length & REFUSAL:
                raise Refused(message.decode(errors="replace"))
            yield message


def _wake(end: socket.socket) -> None:
    """Has whoever reads or writes there, at both ends, find the stream over; closing alone would not."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _end(end: socket.socket) -> None:
    _wake(end)
    end.close()


class LocalCall:
    """A stream at its sender, like ``DeliverCall``: the answers, until the receiver has ended it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def to(cls, address: str) -> "LocalCall | None":
        """None where nobody listens, or another user does: the stream goes over gRPC then."""
        if not _is_possible():
            return None
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as otherwise:
            otherwise.callback(end.close)
            try:
                end.connect(_name(address))
            except OSError:
                return None
            if not _is_own_user(end):
                return None
            otherwise.pop_all()
        return cls(end)

    def exchange(self, requests: Iterable[bytes]) -> Iterator[bytes]:
        """Sends the requests on a thread of their own; gives the answers. Raises as ``_messages`` does."""
        threading.Thread(target=self._write, args=(requests,), name="send", daemon=True).start()
        return _messages(io.BufferedReader(_Answers(self._end)))

    def send_at_once(self, message: bytes) -> bool:
        """Sends a request if it is small and there is room for it; whether it did. Never waits.

        Only while the thread that sends the requests has none.
        """
        framed = _framed(message)
        if len(framed) > AT_ONCE:
            return False
        try:
            sent = self._end.send(framed, socket.MSG_DONTWAIT)
        except OSError:  # there is no room for it, or the stream is over, which whoever reads the answers learns
            return False
        if sent < len(framed):  # Linux never does that with so few bytes; the peer gets all of it on the next stream
            _wake(self._end)
        return True

    def _write(self, requests: Iterable[bytes]) -> None:
        with contextlib.suppress(OSError):  # whoever reads the answers learns that the stream is over
            for request in requests:
                _send(self._end, request)
            self._end.shutdown(socket.SHUT_WR)

    def __enter__(self) -> "LocalCall":
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._end)


class _LocalContext:
    """Of one connection."""

    def auth_context(self) -> dict[str, Any]:
        return {}  # no certificate

    def peer(self) -> str:
        return "this machine:"

    def abort(self, code: Any, details: str) -> NoReturn:
        raise Refused(details)


class LocalServer:
    """Serves Deliver streams of this machine beside a gRPC server, until ``close``."""

    def __init__(self, address: str, handle: Handler) -> None:
        """``address``: the node's, as others know it. Raises OSError where the system gives no such socket."""
        self._handle = handle
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()  # what ``close`` has to end
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(_name(address))
            self._listener.listen(BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self._accepting = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Ends every stream, as one of a process that is gone."""
        with self._lock:
            self._closed = True
            ends, self._open = self._open, set()
        _end(self._listener)
        for end in ends:
            _wake(end)  # who serves it closes it: it may be about to read
        self._accepting.join()  # until then the kernel keeps the name, which this process may soon want again

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError as error:  # it is closed, or this process has no file descriptor left
                if not self._closed:
                    log.warning("no stream of this machine is accepted any more, they go over gRPC: %s", error)
                    _end(self._listener)
                return
            if _is_own_user(end):
                threading.Thread(target=self._serve, args=(end,), name="answer", daemon=True).start()
            else:
                end.close()

    def _serve(self, end: socket.socket) -> None:
        with self._lock:
            self._open.add(end)
            if self._closed:
                _wake(end)
        try:
            for answer in self._handle(_messages(end.makefile("rb")), _LocalContext()):
                _send(end, answer)
        except Refused as refused:
            with contextlib.suppress(OSError):
                _send(end, str(refused).encode(), REFUSAL)
        except OSError:
            pass  # the sender is gone, which the reader of its requests reports
        finally:
            with self._lock:
                self._open.discard(end)
            _end(end)


def _is_possible() -> bool:
    return hasattr(socket, "SO_PEERCRED") and folder() is None


def listen(address: str, handle: Handler) -> LocalServer | None:
    """A server for the streams of this machine; None where there can be none."""
    if not _is_possible():
        return None
    try:
        return LocalServer(address, handle)
    except OSError as error:
        log.info("streams of this machine go over gRPC as well: %s", error)
        return None

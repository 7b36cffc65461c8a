"""Messages through a pipe between two nodes of one machine: the kernel wakes the reader, and nobody is between them.

Each message stands behind its length. Both ends wait for the pipe and for a word from another thread beside it: that
there is something to do, or that the stream which the pipe belongs to is over.
"""

import os
import select
import stat
import struct
import threading
from contextlib import ExitStack

LENGTH = struct.Struct("<I")
LONGEST = 1 << 22  # bytes of a message
WHOLE = select.PIPE_BUF - LENGTH.size  # bytes of a message that a pipe takes whole or not at all
AT_ONCE = 1 << 16  # bytes: what a pipe holds


class _End:
    """One end: its file, and a second one by which other threads wake the thread that uses it."""

    def __init__(self, file: int, event: int) -> None:
        """Takes a pipe's file over, which does not block. ``event``: of ``select.epoll``, what is waited for."""
        self._file = file
        self._event = event
        with ExitStack() as opened:  # if no file is left, those that are must not stay open
            opened.callback(os.close, file)
            self._word = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            opened.callback(os.close, self._word)
            self._epoll = select.epoll()
            self._epoll.register(self._word, select.EPOLLIN)
            self._epoll.register(file, event)
            opened.pop_all()
        self._lock = threading.Lock()
        self._waits = threading.Lock()
        self._in_use = threading.Lock()
        self._over = self._closed = False

    @property
    def file(self) -> int:
        return self._file

    def wake(self) -> None:
        """From any thread: who waits here waits no longer."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._word, 1)

    def end(self) -> None:
        """From any thread: the stream is over. What is in the pipe can still be read; nothing more is taken."""
        self._over = True
        self.wake()

    def close(self) -> None:
        """From any thread, once or more."""
        self.end()
        with self._in_use, self._waits, self._lock:
            if not self._closed:
                self._closed = True
                self._epoll.close()
                os.close(self._file)
                os.close(self._word)

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the pipe can be used, or the other end is gone; False if woken, or after so many seconds.

        One thread waits.
        """
        with self._waits:
            ready = dict(self._epoll.poll(timeout)) if not self._over else {}
            if self._word in ready:
                os.eventfd_read(self._word)
            return self._file in ready


class Writer(_End):
    """One thread writes."""

    def __init__(self, file: int) -> None:
        super().__init__(file, select.EPOLLOUT)

    def write(self, message: bytes) -> bool:
        """Waits until the pipe has taken it all. False once the reader or the stream has ended."""
        left = memoryview(LENGTH.pack(len(message)) + message)
        with self._in_use:
            while left and not self._over:
                try:
                    left = left[os.write(self._file, left) :]
                except BlockingIOError:
                    self.wait()
                except BrokenPipeError:
                    return False
        return not left

    def write_now(self, message: bytes) -> bool:
        """Whether the pipe has taken it, without waiting; never if it is longer than ``WHOLE``. Nobody else writes."""
        with self._in_use:
            if self._over or len(message) > WHOLE:
                return False
            try:
                return os.write(self._file, LENGTH.pack(len(message)) + message) > 0
            except (BlockingIOError, BrokenPipeError):
                return False


class Reader(_End):
    """One thread waits and reads; others may read what is here, and of several readers one at a time takes its turn."""

    def __init__(self, file: int) -> None:
        # A message wakes one of those who wait, not all.
        super().__init__(file, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._held = bytearray()

    def wake_first(self, other: select.epoll) -> None:
        """Who waits there is woken for what comes, who waits here only while nobody does. Before the first wait.

        Of waiters that are to be woken one at a time the kernel takes the one that came first.
        """
        self._epoll.unregister(self._file)
        other.register(self._file, self._event)
        self._epoll.register(self._file, self._event)

    def read(self, timeout: float | None = None) -> list[bytes] | None:
        """The messages that are here; waits for one, at most so many seconds or until woken: then there may be none.

        None once the writer or the stream has ended and nothing is left: a stream that ends on purpose may be over
        before its last messages are read. Raises ValueError for what no writer writes.
        """
        self.wait(timeout)
        return self.read_now()

    def read_now(self) -> list[bytes] | None:
        """The same without waiting."""
        with self._in_use:
            if self._closed:
                return None
            try:
                found = os.read(self._file, AT_ONCE)
            except BlockingIOError:
                return None if self._over else []
            if not found:
                return None
            if not self._held:  # as most of the time: what is read is whole
                messages, end = _cut(found)
                self._held += found[end:]
                return messages
            self._held += found
            messages, end = _cut(self._held)
            del self._held[:end]
            return messages


def _cut(data: bytes | bytearray) -> tuple[list[bytes], int]:
    """The whole messages in it, and where they end."""
    messages, start = [], 0
    while len(data) - start >= LENGTH.size:
        (length,) = LENGTH.unpack_from(data, start)
        if length > LONGEST:
            raise ValueError(f"a message of {length} bytes in a pipe")
        end = start + LENGTH.size + length
        if end > len(data):
            break
        messages.append(bytes(data[start + LENGTH.size : end]))
        start = end
    return messages, start


def pipe() -> tuple[int, int]:
    """Files to read and to write, neither of which blocks."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def open_pipe(pid: int, file: int, flags: int) -> int:
    """Another process's pipe, opened here. Raises OSError or ValueError where there is none."""
    found = os.open(f"/proc/{pid}/fd/{file}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISFIFO(os.fstat(found).st_mode):
        os.close(found)
        raise ValueError("it is no pipe")
    return found

"""Messages through a pipe between two nodes of one machine: the kernel wakes the reader, and nobody is between them.

Each message stands behind its length. Both ends wait in ``poll``, beside the pipe for a word from another thread: that
there is something to do, or that the stream which the pipe belongs to is over.
"""

import os
import select
import stat
import struct
import threading

LENGTH = struct.Struct("<I")
LONGEST = 1 << 22  # bytes of a message
AT_ONCE = 1 << 16  # bytes: what a pipe holds


class _End:
    """One end: its file, and a second one by which other threads wake the thread that uses it."""

    def __init__(self, file: int, event: int) -> None:
        """Takes a pipe's file over, which does not block. ``event``: of ``select.poll``, what is waited for."""
        self._file = file
        try:
            self._word = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:  # no file is left: the one that was taken over must not stay open
            os.close(file)
            raise
        self._poll = select.poll()
        self._poll.register(file, event)
        self._poll.register(self._word, select.POLLIN)
        self._lock = threading.Lock()
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
        with self._in_use, self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._file)
                os.close(self._word)

    def _wait(self, timeout: float | None) -> bool:
        """Whether the pipe can be used, or the other end is gone; False if woken, or after so many seconds."""
        ready = dict(self._poll.poll(None if timeout is None else timeout * 1e3))
        if self._word in ready:
            os.eventfd_read(self._word)
        return self._file in ready


class Writer(_End):
    """One thread writes."""

    def __init__(self, file: int) -> None:
        super().__init__(file, select.POLLOUT)

    def write(self, message: bytes) -> bool:
        """Waits until the pipe has taken it all. False once the reader or the stream has ended."""
        left = memoryview(LENGTH.pack(len(message)) + message)
        with self._in_use:
            while left and not self._over:
                try:
                    left = left[os.write(self._file, left) :]
                except BlockingIOError:
                    self._wait(None)
                except BrokenPipeError:
                    return False
        return not left


class Reader(_End):
    """One thread reads."""

    def __init__(self, file: int) -> None:
        super().__init__(file, select.POLLIN)
        self._held = bytearray()

    def read(self, timeout: float | None = None) -> list[bytes] | None:
        """The messages that are here; waits for one, at most so many seconds or until woken: then there are none.

        None once the writer or the stream has ended and nothing is left: a stream that ends on purpose may be over
        before its last messages are read. Raises ValueError for what no writer writes.
        """
        with self._in_use:
            ready = self._over or self._wait(timeout)
            if not (ready or self._over):
                return []
            if self._closed:
                return None
            try:
                found = os.read(self._file, AT_ONCE)
            except BlockingIOError:  # the stream is over
                return None
            if not found:
                return None
            self._held += found
            return self._cut()

    def _cut(self) -> list[bytes]:
        messages, start = [], 0
        while len(self._held) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._held, start)
            if length > LONGEST:
                raise ValueError(f"a message of {length} bytes in a pipe")
            end = start + LENGTH.size + length
            if end > len(self._held):
                break
            messages.append(bytes(self._held[start + LENGTH.size : end]))
            start = end
        del self._held[:start]
        return messages


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

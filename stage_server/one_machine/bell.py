"""What the compute thread waits at: a bell that other threads ring, and the pipes from nodes of this machine.

A pipe is read by its stream's own thread while the compute thread computes. While that one rests, the kernel wakes it
and nobody else: what a node waits for gets there without a second thread being woken on its way (Linux).
"""

import os
import queue
import select
import threading
from collections.abc import Callable

from culm.stage_server.one_machine.pipe import Reader


class Bell:
    """One thread waits; it looks for work and says that it rests under its node's lock, with which it is rung, too."""

    def __init__(self) -> None:
        """Raises OSError if no more files can be opened."""
        self._rests = False
        self._watched: dict[int, tuple[Reader, Callable[[], bool]]] = {}  # by file
        self._lock = threading.Lock()
        if not hasattr(select, "epoll"):
            self._rung: queue.SimpleQueue[None] = queue.SimpleQueue()
            return
        self._word = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._word, select.EPOLLIN)

    def rests(self) -> None:
        """The compute thread is about to wait: from now on it has to be rung."""
        self._rests = True

    def ring(self) -> None:
        """There may be something to do."""
        if not self._rests:
            return
        self._rests = False
        if hasattr(select, "epoll"):
            os.eventfd_write(self._word, 1)
        else:
            self._rung.put(None)

    def wait(self) -> None:
        """Until it is rung, or something has come through a pipe and is taken. Sometimes for nothing."""
        if not hasattr(select, "epoll"):
            self._rung.get()
            return
        ready = [file for file, _ in self._epoll.poll()]
        self._rests = False
        for file in ready:
            if file == self._word:
                os.eventfd_read(self._word)
            elif (watched := self._watched.get(file)) is not None:
                pipe, take = watched
                if not take():
                    self.leave(pipe)

    def watch(self, pipe: Reader, take: Callable[[], bool]) -> None:
        """From any thread: the compute thread calls ``take`` for what comes while it rests, as long as that is true."""
        with self._lock:
            self._watched[pipe.file] = pipe, take
            pipe.wake_first(self._epoll)

    def leave(self, pipe: Reader) -> None:
        """From any thread, once or more, the last time before the pipe is closed: its stream is over.

        ``take`` may be called once more, if that is about to happen.
        """
        with self._lock:
            # The number of a file that is closed is soon another's.
            if self._watched.get(pipe.file, (None,))[0] is pipe:
                del self._watched[pipe.file]
                self._epoll.unregister(pipe.file)

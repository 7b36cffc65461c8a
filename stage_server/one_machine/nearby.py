"""What the two ends of a stream share where both run on one machine: memory for large pieces, and a pipe each way."""

import os
from contextlib import ExitStack

from culm.protos import stage_pb2
from culm.stage_server.one_machine.pipe import Reader, Writer, open_pipe, pipe
from culm.stage_server.one_machine.slots import SharedSlots, Slots


def of_one_machine(address: str, other: str) -> bool:
    """Whether two addresses (``host:port``) name the same host, and this system can share memory without a file."""
    return hasattr(os, "memfd_create") and address.rpartition(":")[0] == other.rpartition(":")[0]


class Offer:
    """The sender's ends. Nothing is put in before the receiver says that it has opened them."""

    def __init__(self) -> None:
        """Raises OSError where the system gives no such memory, or no more files."""
        with ExitStack() as opened:
            self.slots = Slots()
            opened.callback(self.slots.close)
            # The other end of each pipe is the receiver's alone: if it ends, this one is told at once.
            reading, writing = pipe()
            os.close(reading)
            self.requests = Writer(writing)
            opened.callback(self.requests.close)
            reading, writing = pipe()
            os.close(writing)
            self.answers = Reader(reading)
            opened.pop_all()
        self.memory = stage_pb2.Memory(
            pid=os.getpid(),
            file=self.slots.file,
            secret=self.slots.secret,
            requests=self.requests.file,
            answers=self.answers.file,
        )

    def close(self) -> None:
        """The stream has ended; who waits at one of them waits no more."""
        self.slots.close()
        self.requests.close()
        self.answers.close()


class Opened:
    """The receiver's ends."""

    def __init__(self, memory: stage_pb2.Memory) -> None:
        """Raises OSError or ValueError where it cannot be shared from here, as in another container."""
        if not (memory.requests and memory.answers):
            raise ValueError("it has no pipes")
        self.slots = SharedSlots(memory)  # first: it tells whether this is the process meant
        self.requests = Reader(open_pipe(memory.pid, memory.requests, os.O_RDONLY))
        try:
            self.answers = Writer(open_pipe(memory.pid, memory.answers, os.O_WRONLY))
        except (OSError, ValueError):
            self.requests.close()
            raise

    def end(self) -> None:
        """From any thread: the stream is over; who waits at one of them waits no more."""
        self.requests.end()
        self.answers.end()

    def close(self) -> None:
        self.requests.close()
        self.answers.close()

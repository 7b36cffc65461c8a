"""What the receiver of a stream answers its sender, in order: acknowledgements, credits, what it has heard."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from culm.pipeline.keys import Key
from culm.pipeline.messages import key_to_proto
from culm.protos import stage_pb2, tensor_pb2

AFTERWARDS = 0.05  # seconds until a tensor is acknowledged: whoever computes with it goes first, and others go along
MANY = 64  # answers that wait no longer


@dataclass(frozen=True, slots=True)
class SenderOpened:
    """The sender's memory and pipes are open here: what is answered after this goes through the pipe."""


Answer = Key | stage_pb2.Synced | tensor_pb2.Slot | SenderOpened


class Answers:
    """Any thread puts. One thread takes them for the stream; after ``SenderOpened`` another one, for the pipe."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._on_stream: list[Answer] = []
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()  # for the stream; False: it has ended
        self._for_pipe: list[Answer] | None = None
        self._taker = 0  # the thread that takes them for the pipe
        self._wake: Callable[[], None] | None = None

    def put(self, answer: Answer) -> None:
        with self._lock:
            if self._for_pipe is None:
                self._on_stream.append(answer)
                if isinstance(answer, SenderOpened):
                    self._for_pipe = []
                if len(self._on_stream) == 1 or _are_due(self._on_stream):
                    self._bell.put(True)
                return
            self._for_pipe.append(answer)
            wake = self._wake if _are_due(self._for_pipe) else None
        if wake is not None and threading.get_ident() != self._taker:
            wake()

    def end(self) -> None:
        """The stream has ended."""
        self._bell.put(False)

    def for_stream(self) -> Iterator[stage_pb2.DeliverResponse]:
        """Until the stream has ended; whatever comes after ``SenderOpened`` is not among them."""
        lasts = True
        while lasts:
            lasts = self._bell.get()
            if lasts and not _are_due(self._on_stream):
                with contextlib.suppress(queue.Empty):
                    lasts = self._bell.get(timeout=AFTERWARDS)
            with self._lock:
                found, self._on_stream = self._on_stream, []
            if found:
                yield self._response(found)

    def taken_here(self, wake: Callable[[], None]) -> None:
        """This thread takes those for the pipe from now on. ``wake``: called when another has put what is due."""
        with self._lock:
            self._taker, self._wake = threading.get_ident(), wake

    def patience(self) -> float | None:
        """For how many seconds those for the pipe may wait; None: there are none."""
        waiting = self._for_pipe
        if not waiting:
            return None
        return 0.0 if _are_due(waiting) else AFTERWARDS

    def for_pipe(self) -> bytes:
        """All of them, as one message; nothing if there are none."""
        with self._lock:
            found, self._for_pipe = self._for_pipe, []
        return self._response(found).SerializeToString() if found else b""

    def _response(self, answers: list[Answer]) -> stage_pb2.DeliverResponse:
        response = stage_pb2.DeliverResponse(incarnation=self._incarnation)
        for answer in answers:
            if isinstance(answer, Key):
                response.acknowledged.append(key_to_proto(answer))
            elif isinstance(answer, tensor_pb2.Slot):
                response.free_slots.append(answer.number)
            elif isinstance(answer, SenderOpened):
                response.opened = True
            else:
                response.synced.CopyFrom(answer)  # of several the last: it answers to the newest plan
        return response


def _are_due(answers: Sequence[Answer]) -> bool:
    """Whether these wait no longer for others."""
    return len(answers) >= MANY or any(not isinstance(answer, Key) for answer in answers)

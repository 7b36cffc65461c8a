"""What the receiver of a stream answers its sender, in order: acknowledgements, credits, what it has heard."""

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from culm.pipeline.keys import Key
from culm.pipeline.messages import key_to_proto
from culm.protos import stage_pb2, tensor_pb2

# Seconds until a tensor is acknowledged. Nobody waits for an acknowledgement but an heir, and one message for many is
# cheaper than one for each. What a sender does wait for (a free slot, the answer to its Hello) goes at once and takes
# them along, and so do MANY of them.
AFTERWARDS = 0.05
MANY = 64


@dataclass(frozen=True, slots=True)
class SenderOpened:
    """The sender's memory is open here: pieces may come in its slots from now on."""


Answer = Key | stage_pb2.Synced | tensor_pb2.Slot | SenderOpened


class Answers:
    """Any thread puts. One thread takes them for the stream."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._waiting: list[Answer] = []
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: the stream has ended

    def put(self, answer: Answer) -> None:
        with self._lock:
            self._waiting.append(answer)
            if len(self._waiting) == 1 or _are_due(self._waiting):
                self._wake.put(True)

    def end(self) -> None:
        """The stream has ended."""
        self._wake.put(False)

    def for_stream(self) -> Iterator[stage_pb2.DeliverResponse]:
        """Until the stream has ended."""
        lasts = True
        while lasts:
            lasts = self._wake.get()
            if lasts and not _are_due(self._waiting):
                with contextlib.suppress(queue.Empty):
                    lasts = self._wake.get(timeout=AFTERWARDS)
            with self._lock:
                found, self._waiting = self._waiting, []
            if found:
                yield self._response(found)

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

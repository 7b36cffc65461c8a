"""What the receiver of a stream answers its sender, in order: acknowledgements, credits, what it has heard."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from culm.pipeline.keys import Key
from culm.pipeline.messages import key_to_proto
from culm.protos import stage_pb2, tensor_pb2

# What waits, and for how long:
#
#     acknowledgements alone    AFTERWARDS at most, or until there are MANY: then one message for all
#     a free slot               goes at once: a sender that has lent all its slots stands still
#     SenderOpened              goes at once: until then large pieces go over the stream
#     Synced                    goes at once: an heir asks with a Hello, and runs nothing again before the answer
#
# What goes at once takes along all that waits. All answers keep the order in which they were put, so the
# acknowledgements that a Hello asks for never come after its Synced.
#
# Of several Synced in one message the newest plan's goes: an answer under another plan is of no use to its node, which
# does not ask again under this one. It need not be the last: Hellos come from all streams of a node, the answers go to
# its newest one, and an older stream may be read late.

# Seconds. In a calm step nobody waits for an acknowledgement: the sender keeps the tensor until the commit anyhow
# (rule 5). One message for many costs less of both nodes' interpreters than one for each.
AFTERWARDS = 1.0
# Keys in one message. It bounds what a burst of small tensors leaves unacknowledged when a node is lost.
MANY = 64


@dataclass(frozen=True, slots=True)
class SenderOpened:
    """The sender's memory is open here: pieces may come in its slots from now on."""


Answer = Key | stage_pb2.Synced | tensor_pb2.Slot | SenderOpened


class Answers:
    """Any thread puts, often with the node's lock held, and never waits. One thread takes them for the stream."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._changed = threading.Condition()
        self._waiting: list[Answer] = []
        self._due = False  # whether these wait no longer for others
        # Whether the thread that takes them waits until it is woken. Else it looks again after AFTERWARDS, and is woken
        # only for what is due: each time it would take the interpreter from the compute thread, which has just been
        # given the tensor that is acknowledged.
        self._rests = True
        self._ended = False

    def put(self, answer: Answer) -> None:
        with self._changed:
            self._waiting.append(answer)
            count = len(self._waiting)
            self._due = self._due or not isinstance(answer, Key) or count >= MANY
            if (self._rests and count == 1) or self._due:
                self._changed.notify()

    def end(self) -> None:
        """The stream has ended."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def for_stream(self) -> Iterator[stage_pb2.DeliverResponse]:
        """Until the stream has ended."""
        ended = False
        while not ended:
            with self._changed:
                if self._rests:
                    self._changed.wait_for(lambda: self._waiting or self._ended)
                self._changed.wait_for(lambda: self._due or self._ended, AFTERWARDS)
                found, self._waiting, self._due = self._waiting, [], False
                self._rests, ended = not found, self._ended
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
            elif _order(answer) >= _order(response.synced):
                response.synced.CopyFrom(answer)
        return response


def _order(synced: stage_pb2.Synced) -> tuple[int, int]:
    """Of the plan under which it was asked; the lowest for none."""
    return (synced.term, synced.generation)

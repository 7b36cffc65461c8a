"""The outgoing half of the tensor plane: one thread and one Deliver stream for each peer.

What is to be sent waits in a queue by its key alone. The value is looked up when its turn comes, so nothing that the
peer has acknowledged meanwhile is sent again. A broken stream takes its queue with it: what was in it is
unacknowledged, and so the first that the next stream sends (rule 5).
"""

# One stream, seen from here:
#
#     open a channel       Hello, then every tensor that the peer has not acknowledged
#     while it stands      what is put into the queue, in that order: keys, and HELLO where the plan has changed
#     it breaks            the peer is reported missing, and the next attempt begins after a pause that doubles
#     close()              End, after what is queued: a stream that ends without it has lost its sender
#
# Three threads meet here. The node's threads put keys into the queue under its lock. gRPC takes requests from
# ``_requests`` on a thread of its own, which computes what goes over the wire. ``_run`` reads the answers.
#
# What is acknowledged is told to the worker and never remembered here: an acknowledgement belongs to a (key,
# incarnation) and outlives the stream (rule 5). So a new stream loses nothing, and repeats only what nobody has
# acknowledged.

import logging
import queue
import threading
import time
from collections.abc import Iterator
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from culm.pipeline.errors import JobError
from culm.pipeline.flow import maker_of
from culm.pipeline.keys import ACCUMULATED, PARTIAL, REDUCED, Key
from culm.pipeline.messages import key_from_proto, key_to_proto
from culm.pipeline.patience import DEFAULT, Patience
from culm.pipeline.plan import Member, PlanOrder
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.tls import open_channel
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import chunks, header_of
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.faults import Faults
from culm.stage_server.one_machine.slots import Slots
from culm.stage_server.streams.guard import Guard
from culm.stage_server.streams.plane import deliver, encode, encode_chunk

log = logging.getLogger("culm.sender")

# Bytes of a tensor from which the time that the stream took to take it tells how fast the link is: many times what
# streams buffer, or else it would tell how fast memory is.
LARGE = 1 << 24
# Seconds that a tensor which can wait does wait, so that the compute thread gets the interpreter first and begins its
# next instruction. Of the pauses that were tried it alone stayed: without it a paced step takes about 1 % more, since
# the last stage waits for nobody and every moment of it is a moment of the step.
OWN_WORK_FIRST = 0.001
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # seconds between two attempts


class Source(Protocol):
    """Where a sender finds what it sends, and whom it tells what comes back."""

    def greeting(self) -> stage_pb2.Hello: ...

    def outgoing(self, key: Key, peer: Member) -> tuple[Value, PlanOrder] | None:
        """The value and the plan that this node obeys; None if the peer does not need it any more."""
        ...

    def unacknowledged(self, peer: Member) -> list[Key]: ...

    def acknowledged(self, peer: Member, keys: list[Key]) -> None: ...

    def synced(self, peer: Member, order: PlanOrder, era: int, version: int) -> None: ...

    def peer_lost(self, peer: Member, why: str) -> None: ...

    def sent(self, peer: Member, count: int) -> None:
        """So many bytes of a tensor go to the stream."""
        ...

    def went(self, count: int, seconds: float) -> None:
        """So many bytes in a row took the stream so long to take."""
        ...

    def broken(self, error: BaseException) -> None:
        """Something raised that nobody expected: the process is to end with it."""
        ...


class Sender:
    """Sends to one incarnation of one peer until ``close``; a broken stream is reported and tried again."""

    def __init__(
        self,
        peer: Member,
        source: Source,
        faults: Faults,
        one_machine: bool = False,
        patience: Patience = DEFAULT,
        guard: Guard | None = None,
    ) -> None:
        """``one_machine``: the peer seems to run on this one, so that large pieces may go through shared memory.
        ``patience``: for a peer that is silent.
        """
        self.peer = peer
        self._patience = patience
        self._guard = guard
        self._one_machine = one_machine
        self._source = source
        self._faults = faults
        # Of the present stream alone: gRPC leaves a broken stream's requests waiting, and they would take from it.
        self._queue: queue.SimpleQueue[Key | None] = queue.SimpleQueue()
        self._turn = threading.Lock()  # of those who replace the queue, or put into it
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"send-{peer.node}", daemon=True)
        self._thread.start()

    HELLO = Key(0, 0, 0, PARTIAL, 0, 0)  # in the queue: say hello now
    PAUSE = Key(0, 0, 0, PARTIAL, 0, 1)  # the node's own next work goes first

    def send(self, key: Key, later: bool = False) -> None:
        """Never waits. ``later``: not at once, when this thread would take the interpreter from the compute thread."""
        if later:
            self._put(self.PAUSE)
        self._put(key)

    def say_hello(self) -> None:
        self._put(self.HELLO)

    def close(self) -> None:
        """Ends the stream on purpose, after what is queued."""
        self._closed.set()
        self._put(None)

    def join(self, timeout: float) -> None:
        """Waits until a closed stream has ended, at most so many seconds."""
        self._thread.join(timeout)

    def _put(self, item: Key | None) -> None:
        with self._turn:
            self._queue.put(item)

    def _begin_anew(self) -> None:
        """What was queued for a broken stream is unacknowledged, and so the first that the next one sends."""
        with self._turn:
            self._queue.put(None)
            self._queue = queue.SimpleQueue()
            if self._closed.is_set():
                self._queue.put(None)

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._closed.is_set():
            slots = self._offer()
            try:
                with open_channel(self.peer.address, "stage", self._patience) as channel:
                    for response in deliver(channel, self._requests(self._queue, slots)):
                        pause = SHORTEST_PAUSE
                        self._hear(response, slots)
                why = "its stream ended"
            except grpc.RpcError as error:
                why = details(error)
            # This node's own certificate: a newer one may be there soon. Or what no receiver answers.
            except (JobError, ValueError, DecodeError) as error:
                why = str(error)
            if slots is not None:
                slots.close()
            self._begin_anew()
            if self._closed.is_set():
                return
            if pause == SHORTEST_PAUSE:  # the first time; it is reported as long as it lasts
                log.warning("the stream to %s broke: %s", self.peer.node, why)
            self._source.peer_lost(self.peer, f"the stream to it broke: {why}")
            self._closed.wait(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _offer(self) -> Slots | None:
        try:
            return Slots() if self._one_machine else None
        except OSError as error:  # forbidden here, or no file is left: the stream does it as well
            log.info("tensors to %s go over the stream: no memory can be shared: %s", self.peer.node, error)
            return None

    def _hear(self, response: stage_pb2.DeliverResponse, slots: Slots | None) -> None:
        keys = [key_from_proto(k) for k in response.acknowledged]
        if self._guard is not None:
            self._guard.answer(response, keys)
        if slots is not None:
            if response.opened:
                slots.opened()
            slots.give_back(response.free_slots)
        if keys:
            self._source.acknowledged(self.peer, keys)
        if response.HasField("synced"):
            synced = response.synced
            self._source.synced(self.peer, (synced.term, synced.generation), synced.era, synced.version)

    def _requests(self, items: "queue.SimpleQueue[Key | None]", slots: Slots | None) -> Iterator[bytes]:
        """gRPC takes them on a thread of its own, and would log what raises there and break the stream for ever."""
        try:
            yield from self._messages(items, slots)
        except Exception as error:
            self._source.broken(error)
            raise

    def _messages(self, items: "queue.SimpleQueue[Key | None]", slots: Slots | None) -> Iterator[bytes]:
        hello = self._source.greeting()
        if slots is not None:
            hello.memory.CopyFrom(slots.memory)
        yield encode(stage_pb2.DeliverRequest(hello=hello))
        for key in self._source.unacknowledged(self.peer):
            yield from self._tensor(key, slots)
        while (item := items.get()) is not None:
            if item is self.HELLO:
                yield encode(stage_pb2.DeliverRequest(hello=self._source.greeting()))
            elif item is self.PAUSE:
                time.sleep(OWN_WORK_FIRST)
            else:
                yield from self._tensor(item, slots)
        yield encode(stage_pb2.DeliverRequest(end=stage_pb2.End()))

    def _tensor(self, key: Key, slots: Slots | None) -> Iterator[bytes]:
        found = self._source.outgoing(key, self.peer)
        if found is not None:
            yield from self._pieces(key, *found, slots)

    def _pieces(self, key: Key, value: Value, order: PlanOrder, slots: Slots | None) -> Iterator[bytes]:
        term, generation = order
        wire_key = key_to_proto(key)
        began = time.monotonic()
        total = 0
        for offset, payload in chunks(value):
            size = sum(map(len, payload))
            total = offset + size
            header = header_of(value) if offset == 0 else None
            chunk = tensor_pb2.Chunk(key=wire_key, offset=offset, generation=generation, term=term, header=header)
            if slots is not None and (slot := slots.put(payload)) is not None:
                chunk.slot.number, chunk.slot.size, payload = slot, size, []
            yield encode_chunk(payload, chunk)
            self._source.sent(self.peer, size)
            if key.kind in (REDUCED, ACCUMULATED):
                self._faults.at(key.step, "ship", key.stage)
            else:
                self._faults.at(key.step, "send", maker_of(key))
        if total >= LARGE:
            self._source.went(total, time.monotonic() - began)

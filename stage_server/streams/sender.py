"""The outgoing half of the tensor plane: one thread and one Deliver stream for each peer.

What is to be sent waits in a queue by its key alone. The value is looked up when its turn comes, so nothing that the
peer has acknowledged meanwhile is sent again. A broken stream takes its queue with it: what was in it is
unacknowledged, and so the first that the next stream sends (rule 5).
"""

# A Deliver stream from n0 to n1 while both obey generation 4, and then adopt generation 5:
#
#     n0 (this module)                                  n1 (``incoming``, ``answers``)
#      │ Hello: n0, incarnation, generation 4, memory ──▶│ opens the memory, tells its worker
#      │ every tensor that n1 has not acknowledged ─────▶│ each goes to n1's mailbox
#      │ ◀── acknowledged: all of n0's that n1 holds ────┤ answers the Hello: first what it holds,
#      │ ◀── synced: generation 4, era, version ─────────┤ then where it stands
#      │ tensors in the order in which n0 makes them ───▶│
#      │ ◀── acknowledged: several at a time, later ─────┤
#      │ Hello: generation 5 ───────────────────────────▶│ if n1 does not know that plan yet, this Hello and
#      │ what n1 takes under it and has not acknowledged▶│ what follows wait there, unacknowledged (rule 3)
#      │ End ───────────────────────────────────────────▶│ n0 ends the stream on purpose
#
# The sender does not wait for ``synced`` before it sends. A tensor that n1 holds already may go once more: n1 drops
# the repeat (rule 4). If n1 obeys the newer plan it answers the Hello of the older one, and n0's worker passes the
# answer over: it counts only for the plan that n0 obeys (``Post.hear_standing``).
#
# When a stream breaks, ``_run`` reports the peer, waits for a pause that doubles, and opens the next stream. It gives
# up only in ``close``: whether a peer is lost is the coordinator's decision. A stream that ends without End counts at
# the other side as a lost sender.
#
# Three threads meet here:
#
#     the node's threads     put keys into the queue, with the node's lock held; they never wait. On one machine they
#                            send a tensor of up to a megabyte themselves where nothing is queued (``_goes_at_once``)
#     gRPC's request thread  takes ``_requests``: looks values up, copies them, waits for a slot or for the network
#     ``_run``               opens streams, reads the answers and takes the node's lock to pass them on
#
# The request thread holds the node's lock only for ``greeting`` and ``unacknowledged``, never while it waits. So a
# peer that takes nothing stops its own stream and nothing else.
#
# What is acknowledged is told to the worker and never remembered here: an acknowledgement belongs to a (key,
# incarnation) and outlives the stream (rule 5). So a new stream loses nothing, and repeats only what nobody has
# acknowledged.

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from culm.pipeline.errors import JobError
from culm.pipeline.keys import PARTIAL, Key
from culm.pipeline.messages import key_from_proto, key_to_proto
from culm.pipeline.patience import DEFAULT, Patience
from culm.pipeline.plan import Member, PlanOrder
from culm.pipeline.rpc.channel import details
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import seal, sealed_chunks
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.faults import Faults
from culm.stage_server.one_machine.local_streams import AT_ONCE
from culm.stage_server.one_machine.slots import Slots
from culm.stage_server.streams.guard import Guard
from culm.stage_server.streams.plane import encode, encode_chunk, open_stream
from culm.stage_server.streams.standing import standing_from_proto
from culm.stage_server.worker.effects import Standing

log = logging.getLogger("culm.sender")

# A tensor of at least so many bytes tells how fast the link is, by the time until the stream has taken it. It is many
# times what a stream buffers: of a smaller tensor the time would tell how fast memory is.
LARGE = 1 << 24
# Seconds that this thread sleeps before a tensor that can wait, so that the compute thread gets the interpreter first
# and begins its next instruction. It matters where the last stage sends gradients: that stage waits for nobody, and
# every moment that it loses makes the step longer (``Post._can_wait``).
OWN_WORK_FIRST = 0.001
# Bytes that whoever puts a tensor into the outbox copies for its peer, with the node's lock held: some 0.2 ms.
COPIED_AT_ONCE = 1 << 20
# Seconds between two attempts. A peer that was killed is replaced by the next plan within milliseconds, which closes
# this sender; the longer pause is for a link that stays broken.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.5


class Source(Protocol):
    """Where a sender finds what it sends, and whom it tells what comes back. The node; any thread may call it."""

    def greeting(self) -> stage_pb2.Hello: ...

    def outgoing(self, key: Key, peer: Member) -> tuple[Value, PlanOrder] | None:
        """The value and the plan that this node obeys; None if the peer does not need it any more."""
        ...

    def unacknowledged(self, peer: Member) -> list[Key]: ...

    def acknowledged(self, peer: Member, keys: list[Key]) -> None: ...

    def synced(self, peer: Member, standing: Standing) -> None: ...

    def peer_lost(self, peer: Member, why: str) -> None: ...

    def sent(self, peer: Member, count: int) -> None:
        """So many bytes of a tensor go to the stream."""
        ...

    def went(self, count: int, seconds: float) -> None:
        """The stream took so many bytes of one tensor, and needed so many seconds for it."""
        ...

    def broken(self, error: BaseException) -> None:
        """Something raised that nobody expected: the process is to end with it."""
        ...


@dataclass(frozen=True, slots=True)
class Later:
    """In a queue: the sending thread sleeps for OWN_WORK_FIRST before it sends this tensor."""

    key: Key


@dataclass(slots=True)
class Stream:
    """One attempt, with a queue of its own: gRPC leaves the request thread of a broken stream waiting, and it would
    take a key from a queue that the next stream shared.
    """

    queue: "queue.SimpleQueue[Key | Later | bytes | None]" = field(default_factory=queue.SimpleQueue)
    slots: Slots | None = None  # None: not offered yet, or the peer is not of this machine
    rests: bool = False  # nothing is queued, and the request thread sends nothing
    send_at_once: Callable[[bytes], bool] | None = None  # None: not opened yet, or over, or not of this machine
    answered: bool = False  # the peer has, on this stream


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
        """``one_machine``: the peer seems to run on this one: its stream may be local, with shared memory.
        ``patience``: for a peer that is silent.
        """
        self.peer = peer
        self._patience = patience
        self._guard = guard
        self._one_machine = one_machine
        self._source = source
        self._faults = faults
        self._stream = Stream()
        self._turn = threading.Lock()  # guards which stream is the present one, and all of it but ``answered``
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"send-{peer.node}", daemon=True)
        self._thread.start()

    # A mark among the keys in the queue, told apart by identity: a PARTIAL of no pipelines, which no node sends.
    HELLO = Key(0, 0, 0, PARTIAL, 0, 0)  # the plan has changed: say hello before what follows in the queue

    def send(self, key: Key, later: bool = False) -> None:
        """Never waits. ``later``: the compute thread gets the interpreter for its next instruction first."""
        if later:
            self._put(Later(key))
            return
        with self._turn:
            if not self._goes_at_once(key):
                self._queue(key)

    def say_hello(self) -> None:
        self._put(self.HELLO)

    def close(self) -> None:
        """Ends the stream on purpose, after what is queued."""
        self._closed.set()
        self._put(None)

    def join(self, timeout: float) -> None:
        """Waits until a closed stream has ended, at most so many seconds."""
        self._thread.join(timeout)

    def _put(self, item: Key | Later | bytes | None) -> None:
        with self._turn:
            self._queue(item)

    def _queue(self, item: Key | Later | bytes | None) -> None:
        self._stream.rests = False
        self._stream.queue.put(item)

    def _goes_at_once(self, key: Key) -> bool:
        """Sends a tensor on this thread, if it is not too large and nothing is before it in the stream.

        Returns whether the queue need not take the key: the tensor is sent, or the peer does not need it any more.
        """
        # The request thread would have to get the interpreter first, while the compute thread begins its next
        # instruction. With four nodes on two cores that took 0.3 to 1.4 ms, more than all else on the tensor's way.
        stream = self._stream
        if not stream.rests or stream.send_at_once is None:
            return False
        found = self._source.outgoing(key, self.peer)
        if found is None:
            return True
        size = found[0].size
        if size >= AT_ONCE and (stream.slots is None or size > COPIED_AT_ONCE or not stream.slots.has_free):
            return False
        for message in self._pieces(key, *found, stream.slots):
            if not stream.send_at_once(message):
                self._queue(message)  # as it is: it may name a slot, which has the tensor already
        return True

    def _rests(self, stream: Stream) -> None:
        """The request thread has sent what it was given."""
        with self._turn:
            stream.rests = stream.queue.empty()

    def _begin_anew(self) -> None:
        """What was queued for a broken stream is unacknowledged, and so the first that the next one sends.

        The queue is replaced before the next stream asks the node what is unacknowledged. So a tensor that is made
        meanwhile is in the new queue, in that answer, or in both; it is never in neither.
        """
        with self._turn:
            self._queue(None)  # ends the broken stream's request thread
            self._stream = Stream()
            if self._closed.is_set():
                self._queue(None)

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._closed.is_set():
            stream = self._stream
            stream.slots = self._offer()
            try:
                self._hold(stream)
                why = "the peer ended it"
            except grpc.RpcError as error:
                why = details(error)
            # JobError: this node's own certificate cannot be read; a newer one may be there at the next attempt. The
            # others: an answer that no receiver of this run gives (rule 18), or a local stream that broke.
            except (JobError, ValueError, DecodeError, OSError) as error:
                why = str(error)
            if stream.slots is not None:
                stream.slots.close()  # the request thread may be waiting for a slot
            if stream.answered:
                pause = SHORTEST_PAUSE
            self._begin_anew()
            if self._closed.is_set():
                return
            if pause == SHORTEST_PAUSE:  # logged at the first break only; the coordinator is told at every attempt
                log.warning("the stream to %s broke: %s; it is opened again until it stands", self.peer.node, why)
            self._source.peer_lost(self.peer, f"the stream to it broke: {why}")
            self._closed.wait(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _hold(self, stream: Stream) -> None:
        """Opens the stream and reads the answers, until the peer ends it."""
        with open_stream(self.peer.address, self._one_machine, self._patience) as opened:
            stream.send_at_once = opened.send_at_once
            try:
                for response in opened.exchange(self._requests(stream)):
                    stream.answered = True
                    self._hear(response, stream.slots)
            finally:
                with self._turn:  # nobody sends there while it is closed: its number may be another file's by then
                    stream.send_at_once = None

    def _offer(self) -> Slots | None:
        try:
            return Slots() if self._one_machine else None
        except OSError as error:  # forbidden here, or this process has no file descriptor left
            log.info("this system shares no memory: tensors to %s go over the stream: %s", self.peer.node, error)
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
            self._source.synced(self.peer, standing_from_proto(response.synced))

    def _requests(self, stream: Stream) -> Iterator[bytes]:
        """The requests of one stream, which gRPC takes on a thread of its own.

        gRPC would only log what raises there and end the stream; the next attempt would raise the same, without end.
        """
        try:
            yield from self._messages(stream)
        except Exception as error:
            self._source.broken(error)
            raise

    def _messages(self, stream: Stream) -> Iterator[bytes]:
        hello = self._source.greeting()
        if stream.slots is not None:
            hello.memory.CopyFrom(stream.slots.memory)  # in a stream's first Hello alone
        yield encode(stage_pb2.DeliverRequest(hello=hello))
        for key in self._source.unacknowledged(self.peer):
            yield from self._tensor(key, stream.slots)
        self._rests(stream)
        while (item := stream.queue.get()) is not None:
            if item is self.HELLO:
                yield encode(stage_pb2.DeliverRequest(hello=self._source.greeting()))
            elif isinstance(item, bytes):
                yield item
            elif isinstance(item, Later):
                time.sleep(OWN_WORK_FIRST)
                yield from self._tensor(item.key, stream.slots)
            else:
                yield from self._tensor(item, stream.slots)
            self._rests(stream)
        yield encode(stage_pb2.DeliverRequest(end=stage_pb2.End()))

    def _tensor(self, key: Key, slots: Slots | None) -> Iterator[bytes]:
        # Looked up when its turn comes: it may be acknowledged since it was queued, or its step may be committed.
        found = self._source.outgoing(key, self.peer)
        if found is not None:
            yield from self._pieces(key, *found, slots)

    def _pieces(self, key: Key, value: Value, order: PlanOrder, slots: Slots | None) -> Iterator[bytes]:
        term, generation = order
        wire_key = key_to_proto(key)
        began = time.monotonic()
        total = 0
        # The pieces lie in the tensors' own memory. It may be read without a lock: nobody writes into a tensor once it
        # is in the outbox.
        for offset, payload in sealed_chunks(value):
            size = sum(map(len, payload))
            total = offset + size
            chunk = tensor_pb2.Chunk(key=wire_key, offset=offset, generation=generation, term=term)
            if offset == 0:
                seal(chunk.header, value)
            # The receiver reads a slot when it reads this chunk, so slots and stream keep one order.
            if slots is not None and (slot := slots.put(payload)) is not None:
                chunk.slot.number, chunk.slot.size, payload = slot, size, []
            yield encode_chunk(payload, chunk)
            self._source.sent(self.peer, size)
            self._faults.passes("send", key)
        if total >= LARGE:
            self._source.went(total, time.monotonic() - began)

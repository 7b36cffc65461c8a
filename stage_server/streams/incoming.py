"""One Deliver stream where it arrives: tensors are assembled and passed on at once, and answered."""

# What a stream may say, in this order, else it is ended (rule 18):
#
#     Hello, tensor*, (Hello, tensor*)*, End
#
# A tensor is one or several chunks of one key, the first with a header that says its shape and size. Chunks of two
# tensors never mix on one stream. What happens to each:
#
#     its first chunk      the header is held against the run's bounds, before any memory is set aside
#     the worker may       the chunks are assembled in memory of the tensor's size (``Assembler``); the whole tensor
#       take it, or it     goes to the worker, which decides under the node's lock and acknowledges it
#       is small
#     the worker would     the chunks are counted and thrown away (``Passing``), with no acknowledgement: plans cross
#       drop it anyhow     on their way, and the sender is not at fault
#     it cannot be true    the stream is ended with one line; its sender is not reported as lost
#
# A stream ends in one of three ways:
#
#     after End            its sender closed it on purpose: nothing to report
#     without End          its sender is gone, or the link: the coordinator hears that this node does not hear it
#     other bytes come     the same: the next stream brings the tensor once more. If that is no better, one of the two
#       than were made     machines is, or the link, and the coordinator decides which goes (``coordinator.links``)
#     what does not fit    whoever sent it may not be the node that it names: that node is not reported
#
# One thread reads a stream. It takes the node's lock for a whole tensor and for a Hello, and for nothing else; it never
# waits for an instruction. So a node that computes for long still empties its streams: what bounds its memory is that
# a step's tensors are all that anybody may send it (rule 5).

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from culm.pipeline.keys import Key
from culm.pipeline.messages import key_from_proto
from culm.pipeline.plan import PlanOrder
from culm.pipeline.rpc.roles import peer_of, stranger
from culm.pipeline.rpc.seldom import Seldom
from culm.pipeline.tensors.digests import Corrupted
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, Passing
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.compute.loan import Loan
from culm.stage_server.one_machine.local_streams import Context
from culm.stage_server.one_machine.slots import SharedSlots
from culm.stage_server.streams.answers import Answers, SenderOpened
from culm.stage_server.streams.guard import Guard
from culm.stage_server.streams.plane import Received
from culm.stage_server.streams.unfit import Unfit, refuse

log = logging.getLogger("culm.receiver")
SELDOM = Seldom(log)


class NotHeld(LookupError):
    """This node holds no copy of the layer, or its copy is of another era."""


class Sink(Protocol):
    """Who takes what arrives. Called on the stream's thread; must not wait for compute."""

    incarnation: int

    def heard_hello(self, peer: str, incarnation: int, order: PlanOrder) -> None: ...

    def receiving(self, key: Key) -> None:
        """The first piece of a tensor is here."""
        ...

    def received(self, peer: str, count: int) -> None:
        """So many bytes of a tensor are here."""
        ...

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: Value) -> None: ...

    def sender_lost(self, peer: str, incarnation: int, why: str) -> None: ...

    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        """State of the asked layers, each with its version. Raises NotHeld for what is not held."""
        ...

    def broken(self, error: BaseException) -> None:
        """Something raised that nobody expected: the process is to end with it."""
        ...


class Incoming:
    """Read by one thread until the stream ends."""

    def __init__(
        self,
        sink: Sink,
        heard: Callable[[str, int, Answers], None],
        context: Context,
        guard: Guard | None = None,
    ) -> None:
        """``heard``: called with each Hello's node. Without a guard only what is wrong in any run is refused."""
        self.answers = Answers(sink.incarnation)
        self.greeted = threading.Event()  # set by the first Hello, or by a stream that ends before it
        self.wrong = ""  # why this node ended the stream; set before ``answers`` ends, which the other thread waits for
        self._guard = guard
        self._sink = sink
        self._context = context
        self._heard = heard
        self._peer, self._incarnation = "", 0  # of the first Hello; every later Hello has to name the same
        # Invariant: both are set from a tensor's first chunk to its last one, and None between two tensors.
        self._assembler: Passing | None = None
        self._key: Key | None = None
        self._slots: SharedSlots | None = None  # the sender's memory, where this process could open it

    def read(self, requests: Iterator[Received]) -> None:
        """Until the end; what is wrong with the stream is logged, and ends it."""
        ended = False
        why = "the stream from it broke"
        try:
            for received in requests:
                ended = self._take(received) or ended
        except Corrupted as error:
            why = f"what came from it was changed on the way: {error}"
            log.warning("a tensor of %s was changed on the way: %s; it is to come again", self._peer, error)
        except (grpc.RpcError, OSError) as error:
            log.info("the stream from %s broke: %s", self._peer, error)
        except (ValueError, DecodeError) as error:  # what no node sends says nothing about the node that it names
            self.wrong = str(error) or type(error).__name__
            named = f"its stream, which says that it is of node {self._peer!r}," if self._peer else "its stream"
            SELDOM.say(peer_of(self._context), f"{named} is ended: {self.wrong}")
        except Exception as error:  # whatever else it is: a stream that nobody reads must not stay open
            log.exception("taking what %s sent has raised: its stream is ended", self._peer or "an unknown peer")
            self.wrong = f"{type(error).__name__}: {error}"
        self.greeted.set()
        self.answers.end()
        if self._peer and not ended and not self.wrong:
            self._sink.sender_lost(self._peer, self._incarnation, why)

    def _take(self, received: Received) -> bool:
        """Whether the sender has ended the stream with this."""
        refuse(received.wrong)
        if received.chunk is not None:
            self._piece(received.chunk, received.payload)
        elif received.request.HasField("hello"):
            self._hello(received.request.hello)
        return received.request.HasField("end")

    def _hello(self, hello: stage_pb2.Hello) -> None:
        refuse(stranger(self._context.auth_context(), hello.node))
        if self._guard is not None:
            self._guard.hello(hello)
        if self._peer and (self._peer, self._incarnation) != (hello.node, hello.incarnation):
            now = f"{hello.node!r}, incarnation {hello.incarnation}"
            raise Unfit(f"a stream of {self._peer!r}, incarnation {self._incarnation}, goes on as {now}")
        self._peer, self._incarnation = hello.node, hello.incarnation
        # A stream has one memory, which its first Hello offers: another one is not opened.
        if hello.HasField("memory") and self._slots is None and (slots := _open(hello)) is not None:
            self._slots = slots
            self.answers.put(SenderOpened())
        self.greeted.set()
        self._heard(hello.node, hello.incarnation, self.answers)
        self._sink.heard_hello(hello.node, hello.incarnation, (hello.term, hello.generation))

    def _piece(self, chunk: tensor_pb2.Chunk, payload: memoryview) -> None:
        key = key_from_proto(chunk.key)
        order = (chunk.term, chunk.generation)
        if chunk.HasField("header"):
            self._begin(key, order, chunk.header)
        if self._assembler is None or key != self._key:
            raise Unfit(f"a piece of {key} comes before the header that describes it")
        in_slot = chunk.HasField("slot")
        if in_slot:
            if self._slots is None:
                raise ValueError(f"a piece of {key} is said to be in memory that this node has not opened")
            payload = self._slots.read(chunk.slot)
        self._assembler.add(chunk.offset, payload)
        if in_slot:  # only now: ``add`` has copied it out, and the sender may write into it again
            self.answers.put(chunk.slot)
        self._sink.received(self._peer, len(payload))
        if self._assembler.complete:
            whole, self._assembler, self._key = self._assembler, None, None
            if isinstance(whole, Assembler):
                self._sink.deliver(self._peer, self._incarnation, order, key, _intact(key, whole))

    def _begin(self, key: Key, order: PlanOrder, header: tensor_pb2.ValueHeader) -> None:
        """The first piece of a value is here. All that it says is looked at before any memory is set aside."""
        if not self._peer:
            raise Unfit(f"{key} comes before any Hello")
        if self._assembler is not None:
            raise Unfit(f"{key} begins while pieces of {self._key} are missing")
        taken = self._guard is None or self._guard.takes(self._peer, self._incarnation, order, key, header)
        self._assembler, self._key = Assembler(header) if taken else Passing(header), key
        self._sink.receiving(key)


def _intact(key: Key, whole: Assembler) -> Value:
    try:
        return whole.value()
    except Corrupted as error:
        raise Corrupted(f"{key}: {error}") from error


def _open(hello: stage_pb2.Hello) -> SharedSlots | None:
    try:
        return SharedSlots(hello.memory)
    except (OSError, ValueError) as error:
        # Another container of this host, or a name that two hosts share: the sender goes on over the stream.
        log.info("this node cannot open memory of %s: its tensors come over the stream: %s", hello.node, error)
        return None

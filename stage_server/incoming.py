"""One Deliver stream where it arrives: tensors are assembled and passed on at once, and answered."""

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

import grpc

from pipeline.keys import Key
from pipeline.messages import key_from_proto
from pipeline.plan import PlanOrder
from pipeline.values import Value
from pipeline.wire import Assembler
from protos import stage_pb2, tensor_pb2
from stage_server.answers import Answers, SenderOpened
from stage_server.loan import Loan
from stage_server.nearby import Opened
from stage_server.plane import Received, decode

log = logging.getLogger("culm.receiver")


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
        """State of the asked layers, each with its version. Raises LookupError for what is not held."""
        ...


class Incoming:
    """Read by one thread until the stream, or the pipe to which it has moved, ends."""

    def __init__(self, sink: Sink, heard: Callable[[str, Answers], None], context: grpc.ServicerContext) -> None:
        """``heard``: called with each Hello's node."""
        self.answers = Answers(sink.incarnation)
        self._sink = sink
        self._context = context
        self._heard = heard
        self._peer, self._incarnation = "", 0
        self._assembler: Assembler | None = None
        self._near: Opened | None = None

    def read(self, requests: Iterator[Received]) -> None:
        """Until the end; what is wrong with the stream is logged, and ends it."""
        ended = False
        try:
            for received in requests:
                if received.request.HasField("moved"):
                    ended = self._read_pipe()
                    break
                ended = self._take(received) or ended
                self._answer()
        except grpc.RpcError as error:
            log.info("the stream from %s broke: %s", self._peer, error)
        except Exception:  # whatever is wrong with it: a stream that nobody reads must not stay open
            log.exception("what came from %s cannot be read: its stream is ended", self._peer or "an unknown peer")
        self._answer()
        if self._near is not None:
            self._near.close()
        self.answers.end()
        if self._peer and not ended:
            self._sink.sender_lost(self._peer, self._incarnation, "the stream from it broke")

    def _read_pipe(self) -> bool:
        """Whether it ended on purpose."""
        if self._near is None:
            raise ValueError("it goes on in a pipe that was never opened")
        pipe = self._near.requests
        self.answers.taken_here(pipe.wake)
        while (messages := pipe.read(self.answers.patience())) is not None:
            for message in messages:
                if self._take(decode(message)):
                    return True
            if not messages or self.answers.patience() == 0.0:
                self._answer()
        return False

    def _answer(self) -> None:
        if self._near is not None and (message := self.answers.for_pipe()):
            self._near.answers.write(message)

    def _take(self, received: Received) -> bool:
        """Whether the sender has ended the stream with this."""
        if received.chunk is not None:
            self._piece(received.chunk, received.payload)
        elif received.request.HasField("hello"):
            self._hello(received.request.hello)
        return received.request.HasField("end")

    def _hello(self, hello: stage_pb2.Hello) -> None:
        self._peer, self._incarnation = hello.node, hello.incarnation
        if hello.HasField("memory") and self._near is None and (near := _open(hello)) is not None:
            self._near = near
            if not self._context.add_callback(near.end):
                near.end()
            self.answers.put(SenderOpened())
        self._heard(hello.node, self.answers)
        self._sink.heard_hello(hello.node, hello.incarnation, (hello.term, hello.generation))

    def _piece(self, chunk: tensor_pb2.Chunk, payload: memoryview) -> None:
        key = key_from_proto(chunk.key)
        if chunk.HasField("header"):
            self._assembler = Assembler(chunk.header)
            self._sink.receiving(key)
        if self._assembler is None:
            raise ValueError(f"the first piece of {key} carries no header")
        if chunk.HasField("slot"):
            if self._near is None:
                raise ValueError(f"{key} is in memory that was never opened")
            payload = self._near.slots.read(chunk.slot)
        self._assembler.add(chunk.offset, payload)
        if chunk.HasField("slot"):
            self.answers.put(chunk.slot)
        self._sink.received(self._peer, len(payload))
        if self._assembler.complete:
            order = (chunk.term, chunk.generation)
            value, self._assembler = self._assembler.value(), None
            self._sink.deliver(self._peer, self._incarnation, order, key, value)


def _open(hello: stage_pb2.Hello) -> Opened | None:
    try:
        return Opened(hello.memory)
    except (OSError, ValueError) as error:
        log.info("tensors of %s come over the stream: its memory cannot be shared: %s", hello.node, error)
        return None

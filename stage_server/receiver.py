"""The incoming half of the tensor plane: the Stage service. It assembles tensors and passes them on at once."""

import logging
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import grpc

from pipeline.keys import Key
from pipeline.messages import key_from_proto, key_to_proto
from pipeline.pace import Pace
from pipeline.plan import PlanOrder
from pipeline.values import Value
from pipeline.wire import Assembler, header_of
from protos import stage_pb2, tensor_pb2
from stage_server.loan import Loan
from stage_server.plane import Received, add_to_server
from stage_server.slots import SharedSlots

log = logging.getLogger("culm.receiver")

AFTERWARDS = 0.002  # seconds until a tensor is acknowledged: whoever computes with it goes first, and others go along


@dataclass(frozen=True, slots=True)
class Opened:
    """The sender's memory can be read."""


Answer = Key | stage_pb2.Synced | tensor_pb2.Slot | Opened
Answers = queue.SimpleQueue[Answer | None]  # to one stream, in order; None: it has ended


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


class Receiver:
    """Translates the Stage service. Answers go to the newest stream of each peer."""

    def __init__(self, sink: Sink, seed_bytes_per_second: int | None = None) -> None:
        self._sink = sink
        self._pace = Pace(seed_bytes_per_second)
        self._lock = threading.Lock()
        self._answers: dict[str, Answers] = {}

    def acknowledge(self, peer: str, key: Key) -> None:
        self._answer(peer, key)

    def answer_hello(self, peer: str, order: PlanOrder, era: int, version: int) -> None:
        term, generation = order
        self._answer(peer, stage_pb2.Synced(term=term, generation=generation, era=era, version=version))

    def _answer(self, peer: str, answer: "Key | stage_pb2.Synced") -> None:
        with self._lock:
            answers = self._answers.get(peer)
        if answers is not None:
            answers.put(answer)

    def serve(self, server: grpc.Server) -> None:
        """Has the server call this for the Stage service."""
        add_to_server(server, self._deliver, self._fetch)

    def _deliver(
        self, request_iterator: Iterator[Received], context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.DeliverResponse]:
        answers: Answers = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(request_iterator, answers), name="receive", daemon=True).start()
        batch: list[Answer | None] = []
        while not batch or batch[-1] is not None:
            batch = [answers.get()]
            if isinstance(batch[0], Key):
                time.sleep(AFTERWARDS)
            while not answers.empty():
                batch.append(answers.get())
            response = stage_pb2.DeliverResponse(incarnation=self._sink.incarnation)
            for answer in batch:
                if isinstance(answer, Key):
                    response.acknowledged.append(key_to_proto(answer))
                elif isinstance(answer, tensor_pb2.Slot):
                    response.free_slots.append(answer.number)
                elif isinstance(answer, Opened):
                    response.memory_opened = True
                elif answer is not None:
                    response.synced.CopyFrom(answer)  # of several the last: it answers to the newest plan
            yield response

    def _read(self, requests: Iterator[Received], answers: "Answers") -> None:
        peer, incarnation, ended = "", 0, False
        assembler: Assembler | None = None
        slots: SharedSlots | None = None
        try:
            for received in requests:
                request, chunk, payload = received.request, received.chunk, received.payload
                if chunk is None and request.HasField("hello"):
                    peer, incarnation = request.hello.node, request.hello.incarnation
                    if request.hello.HasField("memory") and (slots := _open(request.hello)) is not None:
                        answers.put(Opened())
                    with self._lock:
                        self._answers[peer] = answers
                    self._sink.heard_hello(peer, incarnation, (request.hello.term, request.hello.generation))
                elif chunk is not None:
                    key = key_from_proto(chunk.key)
                    if chunk.HasField("header"):
                        assembler = Assembler(chunk.header)
                        self._sink.receiving(key)
                    if assembler is None:
                        raise ValueError(f"the first piece of {key} carries no header")
                    if chunk.HasField("slot"):
                        if slots is None:
                            raise ValueError(f"{key} is in memory that was never opened")
                        payload = slots.read(chunk.slot)
                    assembler.add(chunk.offset, payload)
                    if chunk.HasField("slot"):
                        answers.put(chunk.slot)
                    self._sink.received(peer, len(payload))
                    if assembler.complete:
                        order = (chunk.term, chunk.generation)
                        self._sink.deliver(peer, incarnation, order, key, assembler.value())
                        assembler = None
                else:
                    ended = True
        except grpc.RpcError as error:
            log.info("the stream from %s broke: %s", peer, error)
        except Exception:  # whatever is wrong with it: a stream that nobody reads must not stay open
            log.exception("what came from %s cannot be read: its stream is ended", peer or "an unknown peer")
        answers.put(None)
        if peer and not ended:
            self._sink.sender_lost(peer, incarnation, "the stream from it broke")

    def _fetch(
        self, request: stage_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.FetchResponse]:
        try:
            for layer, version, loan in self._sink.lend(list(request.layers), request.era):
                for offset, payload in loan.chunks():
                    response = stage_pb2.FetchResponse(layer=layer, version=version, payload=payload, offset=offset)
                    if offset == 0:
                        response.header.CopyFrom(header_of(loan.value))
                    if not request.at_once:
                        self._pace.take(len(payload))
                    yield response
        except LookupError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def _open(hello: stage_pb2.Hello) -> SharedSlots | None:
    try:
        return SharedSlots(hello.memory)
    except (OSError, ValueError) as error:
        log.info("tensors of %s come over the stream: its memory cannot be shared: %s", hello.node, error)
        return None

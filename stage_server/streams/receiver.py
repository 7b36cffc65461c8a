"""The incoming half of the tensor plane: the Stage service."""

# The threads of one Deliver stream at its receiving end:
#
#     a thread of the server's pool   runs ``_deliver``: takes answers from ``Answers`` and gives them to gRPC
#     "answer", one for each stream   does the same where the stream is a socket of this machine (``local_streams``)
#     "receive", one for each stream  runs ``Incoming.read``: assembles tensors and hands them to the node
#     the compute thread and others   put acknowledgements into ``Answers``, with the node's lock held; never wait
#
# Both directions have a thread, since neither may wait for the other: an acknowledgement goes out while nothing comes
# in, and a large tensor comes in while nothing is to be answered. The "receive" thread takes the node's lock for each
# whole tensor. Compute gives that lock up while it works, so a busy node takes tensors all the same.
#
# Answers go to the newest stream of a peer. There can be two for a moment: the peer has opened another one, and the
# old one's thread has not noticed yet. Tensors of the old stream still count, since a repeat of a key is harmless
# (rule 4). Answers must go where the peer listens.
#
# What is to be answered while a peer has no stream is dropped. The peer's next stream begins with a Hello, and the
# answer to that Hello acknowledges all that is here.

import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from operator import itemgetter

import grpc

from culm.pipeline.keys import Key
from culm.pipeline.rpc.roles import peer_of
from culm.pipeline.tensors.digests import Digest
from culm.pipeline.tensors.wire import header_of
from culm.protos import stage_pb2
from culm.stage_server.one_machine.local_streams import Context
from culm.stage_server.streams.answers import Answers
from culm.stage_server.streams.guard import Guard
from culm.stage_server.streams.incoming import SELDOM, Incoming, NotHeld, Sink
from culm.stage_server.streams.plane import Received, add_to_server, decode_any
from culm.stage_server.streams.rate_limit import RateLimit
from culm.stage_server.streams.standing import standing_to_proto
from culm.stage_server.streams.unfit import Unfit
from culm.stage_server.worker.effects import Standing

# From a stream's beginning to its first message. Whoever opens streams and says nothing holds two threads for each.
HELLO_SECONDS = 10.0
# Characters of a refusal. It quotes what came, which may be long, and gRPC sends it as one HTTP/2 header.
MOST_SAID = 500


class Receiver:
    """Translates the Stage service. Answers go to the newest stream of each peer."""

    def __init__(self, sink: Sink, seed_bytes_per_second: int | None = None, guard: Guard | None = None) -> None:
        self._sink = sink
        self._guard = guard
        self._pace = RateLimit(seed_bytes_per_second)
        self._lock = threading.Lock()  # guards the table below; nobody waits with it held
        self._opened = count()  # streams are numbered as they are opened
        # Invariant: for each peer the newest stream that has said Hello, with its number, and none that has ended. A
        # Hello of a new plan may come late on an older stream, which nobody reads any more.
        self._answers: dict[str, tuple[tuple[int, int], Answers]] = {}

    def acknowledge(self, peer: str, key: Key) -> None:
        self._answer(peer, key)

    def answer_hello(self, peer: str, standing: Standing) -> None:
        self._answer(peer, standing_to_proto(standing))

    def _answer(self, peer: str, answer: Key | stage_pb2.Synced) -> None:
        with self._lock:
            newest = self._answers.get(peer)
        if newest is not None:
            newest[1].put(answer)

    def serve(self, server: grpc.Server) -> None:
        """Has the server call this for the Stage service."""
        add_to_server(server, self._deliver, self._fetch)

    def serve_locally(self, requests: Iterator[bytes], context: Context) -> Iterator[bytes]:
        """One Deliver stream from a node of this machine, as bytes: a ``Handler`` of ``local_streams``."""
        return (answer.SerializeToString() for answer in self._deliver(map(decode_any, requests), context))

    def _deliver(self, request_iterator: Iterator[Received], context: Context) -> Iterator[stage_pb2.DeliverResponse]:
        incoming = Incoming(self._sink, partial(self._heard, next(self._opened)), context, self._guard)
        threading.Thread(target=incoming.read, args=(request_iterator,), name="receive", daemon=True).start()
        if not incoming.greeted.wait(HELLO_SECONDS):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no Hello came within {HELLO_SECONDS:g} s")
        try:
            yield from incoming.answers.for_stream()
        finally:
            self._forget(incoming.answers)
        if incoming.wrong:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, incoming.wrong[:MOST_SAID])

    def _heard(self, number: int, peer: str, incarnation: int, answers: Answers) -> None:
        mine = ((incarnation, number), answers)  # an older process of that name may still be there, and open another
        with self._lock:
            self._answers[peer] = max(self._answers.get(peer, mine), mine, key=itemgetter(0))

    def _forget(self, ended: Answers) -> None:
        """The stream has ended. By identity, not by peer: a newer stream of this peer may stand in the table."""
        with self._lock:
            self._answers = {peer: newest for peer, newest in self._answers.items() if newest[1] is not ended}

    def _fetch(
        self, request: stage_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.FetchResponse]:
        try:
            if self._guard is not None:
                self._guard.fetch(request.layers)
            for layer, version, loan in self._sink.lend(list(request.layers), request.era):
                header, digest = header_of(loan.value), Digest()
                for offset, payload in loan.chunks():
                    response = stage_pb2.FetchResponse(layer=layer, version=version, payload=payload, offset=offset)
                    if offset == 0:
                        response.header.CopyFrom(header)
                    digest.add(payload)
                    if offset + len(payload) == header.total_bytes:
                        response.digest = digest.number()
                    if not request.at_once:  # seeding leaves the link to training: these fetches share one rate
                        self._pace.take(len(payload))
                    yield response
        except Unfit as error:
            SELDOM.say(peer_of(context), f"a Fetch is refused: {error}")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NotHeld as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:  # gRPC would only log it, and the peer would ask this node again without end
            self._sink.broken(error)
            raise

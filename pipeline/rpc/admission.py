"""How many calls may be open at once, so that a caller who opens many keeps none out that training needs (rule 18).

A server with threads gives each open stream a thread, for as long as the caller likes. So calls are of two kinds: those
that training needs, and all others. Each kind has room of its own, of which one caller gets a share. A call beyond that
is refused at once, with RESOURCE_EXHAUSTED, and may be tried again.
"""

import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isasyncgenfunction
from typing import Any

import grpc

from culm.pipeline.rpc.roles import behaviour_of, guarded, has_tls, identity_of, peer_of
from culm.pipeline.rpc.seldom import Seldom

SELDOM = Seldom(logging.getLogger("culm.admission"))


@dataclass(frozen=True, slots=True)
class Room:
    """Calls that may be open at once: of all callers together, of one, and of one whose certificate names its node.

    A caller is a certificate on a host.
    """

    all: int
    each: int
    node: int


OTHERS = Room(32, 8, 8)  # health, reflection and whatever a viewer asks
# Deliver is one stream from each other node, Attend one from each node of the run, Fetch one for each node being
# seeded. One caller may be many nodes, which share a host or a certificate: only together do they come near to this.
NEEDED = {
    "/culm.v1.Stage/Deliver": Room(512, 512, 32),
    "/culm.v1.Stage/Fetch": Room(64, 32, 8),
    "/culm.v1.TensorWork/Work": Room(512, 512, 512),  # a stream of each worker
    "/culm.v1.TensorWork/GetParameters": Room(64, 64, 64),
    "/culm.v1.Coordinator/Attend": Room(1 << 14, 1 << 14, 8),
    "/culm.v1.Coordinator/ListEvents": Room(256, 64, 64),
}
MOST_STREAMS = [("grpc.max_concurrent_streams", 1024)]  # of one connection: HTTP/2 holds back the others
# Of a node's server: a thread for each call that has room, and 16 on which the others are refused.
THREADS = sum(room.all for method, room in NEEDED.items() if "Coordinator" not in method) + OTHERS.all + 16


class Admission:
    """Counts open calls. Any thread asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[tuple[str, str]] = Counter()  # by kind and caller
        self._kinds: Counter[str] = Counter()

    def refusal(self, method: str, peer: str, names_node: bool = False) -> str:
        """Why the call has no room. Empty: it has, and counts as open until ``left``."""
        kind, room = (method, NEEDED[method]) if method in NEEDED else ("", OTHERS)
        name = method.rpartition("/")[2]
        with self._lock:
            most = room.node if names_node else room.each
            if self._open[kind, peer] >= most:
                return f"this caller has {most} calls like {name} open already: end one first"
            if self._kinds[kind] >= room.all:
                return f"all callers together have {room.all} calls like {name} open: try again later"
            self._open[kind, peer] += 1
            self._kinds[kind] += 1
            return ""

    def left(self, method: str, peer: str) -> None:
        kind = method if method in NEEDED else ""
        with self._lock:
            self._kinds[kind] -= 1
            self._open[kind, peer] -= 1
            if not self._open[kind, peer]:
                del self._open[kind, peer]

    @contextmanager
    def counted(self, method: str, context: Any) -> Iterator[str]:
        """Gives why the call is refused, or an empty text."""
        peer, authenticated = peer_of(context), context.auth_context()
        why = self.refusal(method, peer, has_tls(authenticated) and bool(identity_of(authenticated).node))
        try:
            yield why
        finally:
            if not why:
                self.left(method, peer)


class AdmissionInterceptor(grpc.ServerInterceptor):
    """For a server with threads."""

    def __init__(self) -> None:
        self._admission = Admission()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        behaviour = behaviour_of(handler)

        def one(request: Any, context: Any) -> Any:
            with self._admission.counted(details.method, context) as why:
                _refuse(why, context)
                return behaviour(request, context)

        def stream(request: Any, context: Any) -> Iterator[Any]:
            with self._admission.counted(details.method, context) as why:
                _refuse(why, context)
                yield from behaviour(request, context)

        return guarded(handler, stream if handler.response_streaming else one)


def _refuse(why: str, context: Any) -> None:
    if why:
        SELDOM.say(peer_of(context), why)
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)


class AioAdmissionInterceptor(grpc.aio.ServerInterceptor):
    """For an aio server."""

    def __init__(self) -> None:
        self._admission = Admission()

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        behaviour = behaviour_of(handler)

        async def one(request: Any, context: Any) -> Any:
            with self._admission.counted(details.method, context) as why:
                await _refuse_aio(why, context)
                return await behaviour(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._admission.counted(details.method, context) as why:
                await _refuse_aio(why, context)
                async for response in behaviour(request, context):
                    yield response

        return guarded(handler, stream if isasyncgenfunction(behaviour) else one)


async def _refuse_aio(why: str, context: Any) -> None:
    if why:
        SELDOM.say(peer_of(context), why)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)

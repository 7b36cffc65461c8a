"""Who may call what. A caller is known by the URI in its certificate; without TLS nobody is known.

The URI is ``culm://ROLE/NAME``, and may go on with ``/run/RUN``, ``/node/NODE``, or both in this order: then the
certificate counts for that run alone, or as that node alone. ROLE is read as a host is: in either case, percent-encoded
or not. A URI of another form gives no role. Neither do two such URIs in one certificate.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import isasyncgenfunction
from typing import Any
from urllib.parse import unquote

import grpc

from culm.pipeline.rpc.rpc_metrics import HANDLERS
from culm.pipeline.rpc.seldom import Seldom
from culm.pipeline.rpc.unreadable import lenient, problem
from culm.pipeline.text import is_name

SELDOM = Seldom(logging.getLogger("culm.security"))
Authenticated = Mapping[str, Any]  # what gRPC says of a peer: lists of bytes by name

ROLES = ("stage", "coordinator", "viewer", "operator")
SCHEME = "culm://"

# By the full name of a method; what is not named here (health, reflection) is open to every role.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "/culm.v1.Stage/Deliver": ("stage",),
    "/culm.v1.Stage/Fetch": ("stage", "operator"),
    "/culm.v1.TensorWork/GetTensorJob": ("stage",),
    "/culm.v1.TensorWork/GetParameters": ("stage",),
    "/culm.v1.TensorWork/Work": ("stage",),
    "/culm.v1.Timetables/GetTimetable": ("viewer", "operator"),
    "/culm.v1.Coordinator/Attend": ("stage",),
    "/culm.v1.Coordinator/Kill": ("operator",),
    "/culm.v1.Coordinator/Drain": ("operator",),
    "/culm.v1.Coordinator/NoteFetched": ("operator",),
    "/culm.v1.Coordinator/Pause": ("operator",),
    "/culm.v1.Coordinator/Resume": ("operator",),
    "/culm.v1.Coordinator/SaveCheckpoint": ("operator",),
    "/culm.v1.Coordinator/ListLogLines": ("viewer", "operator"),
    "/culm.v1.Coordinator/GetStatus": ROLES,
    "/culm.v1.Coordinator/ListEvents": ROLES,
    "/culm.v1.Coordinator/GetCost": ROLES,
}
BEHAVIOURS = {
    (False, False): "unary_unary",
    (True, False): "stream_unary",
    (False, True): "unary_stream",
    (True, True): "stream_stream",
}


@dataclass(frozen=True, slots=True)
class CertificateHolder:
    """What a certificate says of its holder. Empty ``run`` or ``node``: any."""

    role: str = ""
    name: str = ""
    run: str = ""
    node: str = ""

    def __str__(self) -> str:
        return f"{self.role} {self.name}".strip()


NOBODY = CertificateHolder()
FORM = re.compile(r"culm://([^/?#]*)/([^/?#]+)(?:/run/([^/?#]+))?(?:/node/([^/?#]+))?", re.IGNORECASE)


def identity_in(uris: Iterable[str]) -> CertificateHolder:
    """The holder, from a certificate's URIs. ``NOBODY`` unless exactly one is Culm's and has the form above."""
    own = [uri for uri in uris if uri.lower().startswith(SCHEME)]
    found = FORM.fullmatch(own[0]) if len(own) == 1 else None
    if found is None:
        return NOBODY
    role, name, run, node = [unquote(part or "") for part in found.groups()]
    told = [each for each, part in zip((name, run, node), found.groups()[1:], strict=True) if part is not None]
    if not all(map(is_name, told)) or role.lower() not in ROLES:
        return NOBODY
    return CertificateHolder(role=role.lower(), name=name, run=run, node=node)


def has_tls(authenticated: Authenticated) -> bool:
    return b"ssl" in authenticated.get("transport_security_type", ())


def identity_of(authenticated: Authenticated) -> CertificateHolder:
    """The peer, from its certificate's URIs alone: a DNS name may hold any text."""
    return identity_in(uri.decode(errors="replace") for uri in authenticated.get("peer_uri", ()))


def refusal(method: str, authenticated: Authenticated, run: str = "") -> str:
    """Why the peer may not call the method; empty: it may. Without TLS everybody who reaches the port may.

    ``run``: the one that is served here; empty: not known yet.
    """
    if not has_tls(authenticated):
        return ""
    identity = identity_of(authenticated)
    allowed = ALLOWED.get(method, ROLES)
    name = method.rpartition("/")[2]
    if identity.role not in allowed:
        who = f"the role {identity.role}" if identity.role else "no role of Culm"
        return f"the certificate has {who}; {name} needs the role {' or '.join(allowed)}"
    if run and identity.run and identity.run != run:
        return f"the certificate is for the run {identity.run}; this is the run {run}"
    return ""


def stranger(authenticated: Authenticated, node: str) -> str:
    """Why the peer is not the node that it says it is; empty: it may be. A certificate without a node fits any."""
    named = identity_of(authenticated).node if has_tls(authenticated) else ""
    return f"the certificate is for the node {named}, not for {node[:80]!r}" if named and named != node else ""


def peer_of(context: Any) -> str:
    """Who calls, for a log line or a count: by certificate and host. Every connection has another port."""
    host = str(context.peer()).rpartition(":")[0]
    authenticated = context.auth_context()
    return f"{identity_of(authenticated)} at {host}" if has_tls(authenticated) else host


def guarded(handler: Any, behaviour: Callable[..., Any]) -> Any:
    """The handler with another behaviour, whose requests may be ``Unreadable``."""
    make = HANDLERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(behaviour, lenient(handler.request_deserializer), handler.response_serializer)


def behaviour_of(handler: Any) -> Callable[..., Any]:
    name = BEHAVIOURS[bool(handler.request_streaming), bool(handler.response_streaming)]
    behaviour: Callable[..., Any] = getattr(handler, name)
    return behaviour


class RoleInterceptor(grpc.ServerInterceptor):
    """For a server with threads. ``run``: the one that it serves, if it is known."""

    def __init__(self, run: str = "") -> None:
        self._run = run

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        behaviour = behaviour_of(handler)

        def checked(request: Any, context: Any) -> Any:
            why = refusal(details.method, context.auth_context(), self._run)
            if why:
                SELDOM.say(peer_of(context), f"the call is refused: {why}")
                context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
            if wrong := problem(request):
                SELDOM.say(peer_of(context), wrong)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
            return behaviour(request, context)

        return guarded(handler, checked)


class AioRoleInterceptor(grpc.aio.ServerInterceptor):
    """For an aio server. ``run``: the one that it serves."""

    def __init__(self, run: str = "") -> None:
        self._run = run

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        behaviour = behaviour_of(handler)

        async def check(request: Any, context: Any) -> None:
            why = refusal(details.method, context.auth_context(), self._run)
            if why:
                SELDOM.say(peer_of(context), f"the call is refused: {why}")
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
            if wrong := problem(request):
                SELDOM.say(peer_of(context), wrong)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)

        async def answer(request: Any, context: Any) -> Any:
            await check(request, context)
            return await behaviour(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            await check(request, context)
            async for response in behaviour(request, context):
                yield response

        return guarded(handler, stream if isasyncgenfunction(behaviour) else answer)

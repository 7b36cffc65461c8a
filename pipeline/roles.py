"""Who may call what. A caller is known by the URI in its certificate, ``culm://ROLE/NAME``; without TLS by nothing."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from inspect import isasyncgenfunction
from typing import Any

import grpc

from pipeline.rpc_metrics import HANDLERS

log = logging.getLogger("culm.security")

ROLES = ("stage", "coordinator", "viewer", "operator")
SCHEME = "culm://"

# By the full name of a method; what is not named here (health, reflection) is open to every role.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "/culm.v1.Stage/Deliver": ("stage",),
    "/culm.v1.Stage/Fetch": ("stage", "operator"),
    "/culm.v1.Coordinator/Attend": ("stage",),
    "/culm.v1.Coordinator/Kill": ("operator",),
    "/culm.v1.Coordinator/Drain": ("operator",),
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


def role_of(authenticated: Mapping[str, list[bytes]]) -> str:
    """The role that a certificate names, of what gRPC says of the peer; empty if it names none."""
    for name in authenticated.get("x509_subject_alternative_name", ()):
        text = name.decode(errors="replace")
        if text.startswith(SCHEME):
            return text.removeprefix(SCHEME).partition("/")[0]
    return ""


def refusal(method: str, authenticated: Mapping[str, list[bytes]]) -> str:
    """Why the peer may not call the method, or nothing. Without TLS whoever reaches the port may."""
    if b"ssl" not in authenticated.get("transport_security_type", ()):
        return ""
    role = role_of(authenticated)
    allowed = ALLOWED.get(method, ROLES)
    if role in allowed:
        return ""
    who = f"the role {role}" if role else "no role of Culm"
    name = method.rpartition("/")[2]
    return f"the certificate has {who}; {name} needs {' or '.join(allowed)}"


def _guarded(handler: Any, behaviour: Callable[..., Any]) -> Any:
    make = HANDLERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _behaviour_of(handler: Any) -> Callable[..., Any]:
    name = BEHAVIOURS[bool(handler.request_streaming), bool(handler.response_streaming)]
    behaviour: Callable[..., Any] = getattr(handler, name)
    return behaviour


class RoleInterceptor(grpc.ServerInterceptor):
    """For a server with threads."""

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        behaviour = _behaviour_of(handler)

        def guarded(request: Any, context: Any) -> Any:
            why = refusal(details.method, context.auth_context())
            if why:
                log.warning("%s is refused: %s", context.peer(), why)
                context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
            return behaviour(request, context)

        return _guarded(handler, guarded)


class AioRoleInterceptor(grpc.aio.ServerInterceptor):
    """For an aio server."""

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        behaviour = _behaviour_of(handler)

        async def check(context: Any) -> None:
            why = refusal(details.method, context.auth_context())
            if why:
                log.warning("%s is refused: %s", context.peer(), why)
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)

        async def answer(request: Any, context: Any) -> Any:
            await check(context)
            return await behaviour(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            await check(context)
            async for response in behaviour(request, context):
                yield response

        return _guarded(handler, stream if isasyncgenfunction(behaviour) else answer)

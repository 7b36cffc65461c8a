"""What a gRPC server tells Prometheus of its RPCs, under the names of go-grpc-prometheus.

A stream counts its messages, and its time once, at its end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from inspect import isasyncgenfunction, iscoroutinefunction
from types import TracebackType
from typing import Any, Self

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

RPC = ("grpc_type", "grpc_service", "grpc_method")
TYPES = {  # by whether requests and responses are streams
    (False, False): "unary",
    (True, False): "client_stream",
    (False, True): "server_stream",
    (True, True): "bidi_stream",
}
HANDLERS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
CANCELLED = "Canceled"
# Named as Go names them: InvalidArgument.
CODES = {code.value[0]: "".join(w.capitalize() for w in code.name.split("_")) for code in grpc.StatusCode}
CODES |= {grpc.StatusCode.OK.value[0]: "OK", grpc.StatusCode.CANCELLED.value[0]: CANCELLED}

Handler = Any  # grpc.RpcMethodHandler: its kinds of behaviour have no common type


def code_of(code: grpc.StatusCode | int | None, error: BaseException | None, cancelled: bool) -> str:
    """What an RPC ended with: ``code`` as its context has it, ``error`` as its behaviour raised it."""
    if cancelled or isinstance(error, GeneratorExit | asyncio.CancelledError):
        return CANCELLED
    number = code.value[0] if isinstance(code, grpc.StatusCode) else code or 0
    return "Unknown" if error is not None and number == 0 else CODES.get(number, "Unknown")


class RpcMetrics:
    """The metrics of one server. ``clock`` gives seconds."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = Counter("grpc_server_started", "RPCs begun.", RPC, registry=registry)
        coded = (*RPC, "grpc_code")
        self.handled = Counter("grpc_server_handled", "RPCs ended, by their code.", coded, registry=registry)
        self.received = Counter("grpc_server_msg_received", "Messages received.", RPC, registry=registry)
        self.sent = Counter("grpc_server_msg_sent", "Messages sent.", RPC, registry=registry)
        self.seconds = Histogram("grpc_server_handling_seconds", "From begin to end of RPCs.", RPC, registry=registry)


class _Rpc:
    """One RPC, from entering to leaving."""

    def __init__(
        self, metrics: RpcMetrics, labels: tuple[str, str, str], context: Any, gone: Callable[[], bool]
    ) -> None:
        self._metrics = metrics
        self._labels = labels
        self._context = context
        self._gone = gone  # whether the client has left, though the behaviour came to its end
        self.received = metrics.received.labels(*labels)
        self.sent = metrics.sent.labels(*labels)

    def __enter__(self) -> Self:
        self._began = self._metrics.clock()
        self._metrics.started.labels(*self._labels).inc()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = code_of(self._context.code(), error, self._gone())
        self._metrics.handled.labels(*self._labels, code).inc()
        self._metrics.seconds.labels(*self._labels).observe(self._metrics.clock() - self._began)

    def request(self, request: Any, streaming: bool) -> Any:
        if streaming:
            return self._requests(request)
        self.received.inc()
        return request

    def _requests(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            self.received.inc()
            yield request

    def aio_request(self, request: Any, streaming: bool) -> Any:
        if streaming:
            return self._aio_requests(request)
        self.received.inc()
        return request

    async def _aio_requests(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            self.received.inc()
            yield request


class _CountingContext:
    """An aio context that counts what its behaviour reads and writes by itself."""

    def __init__(self, context: Any, rpc: _Rpc) -> None:
        self._context = context
        self._rpc = rpc

    async def read(self) -> Any:
        message = await self._context.read()
        if message is not grpc.aio.EOF:
            self._rpc.received.inc()
        return message

    async def write(self, message: Any) -> None:
        await self._context.write(message)
        self._rpc.sent.inc()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _labels(handler: Handler, method: str) -> tuple[str, str, str]:
    _, service, name = method.split("/", 2)
    return TYPES[handler.request_streaming, handler.response_streaming], service, name


def _behaviour(handler: Handler) -> Any:
    return handler.unary_unary or handler.stream_unary or handler.unary_stream or handler.stream_stream


def _with_behaviour(handler: Handler, behaviour: Callable[..., Any]) -> Handler:
    make = HANDLERS[handler.request_streaming, handler.response_streaming]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


class Interceptor(grpc.ServerInterceptor):
    """For a server with threads."""

    def __init__(self, metrics: RpcMetrics) -> None:
        self._metrics = metrics

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Handler], handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        labels, behaviour = _labels(handler, handler_call_details.method), _behaviour(handler)

        def one(request: Any, context: grpc.ServicerContext) -> Any:
            with _Rpc(self._metrics, labels, context, lambda: not context.is_active()) as rpc:
                response = behaviour(rpc.request(request, handler.request_streaming), context)
                rpc.sent.inc()
                return response

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with _Rpc(self._metrics, labels, context, lambda: not context.is_active()) as rpc:
                for response in behaviour(rpc.request(request, handler.request_streaming), context):
                    rpc.sent.inc()
                    yield response

        return _with_behaviour(handler, stream if handler.response_streaming else one)


class AioInterceptor(grpc.aio.ServerInterceptor):
    """For an aio server. Behaviours that are no coroutines or async generators are left alone."""

    def __init__(self, metrics: RpcMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        labels, behaviour = _labels(handler, handler_call_details.method), _behaviour(handler)

        async def one(request: Any, context: Any) -> Any:
            with _Rpc(self._metrics, labels, context, context.cancelled) as rpc:
                counting = _CountingContext(context, rpc)
                response = await behaviour(rpc.aio_request(request, handler.request_streaming), counting)
                if not handler.response_streaming:
                    rpc.sent.inc()
                return response

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            with _Rpc(self._metrics, labels, context, context.cancelled) as rpc:
                counting = _CountingContext(context, rpc)
                async for response in behaviour(rpc.aio_request(request, handler.request_streaming), counting):
                    rpc.sent.inc()
                    yield response

        if isasyncgenfunction(behaviour):
            return _with_behaviour(handler, stream)
        return _with_behaviour(handler, one) if iscoroutinefunction(behaviour) else handler

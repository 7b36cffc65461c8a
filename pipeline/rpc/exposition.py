"""Serves a process's metrics to Prometheus over HTTP, from a registry of its own.

It has a few threads, and gives each request a few seconds, so a caller who opens connections and says nothing holds up
nobody.
"""

import contextlib
import errno
import socket
import threading
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, make_wsgi_app

LOOPBACK = "127.0.0.1"
AT_ONCE = 8  # requests; one more is turned away
SECONDS = 10.0  # from a connection to its end


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port of ``[HOST]:PORT`` or ``PORT``; loopback unless a host is named. Raises ValueError."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--metrics {listen}: this is not an address; give HOST:PORT, such as {LOOPBACK}:9464")
    return host.strip("[]") or LOOPBACK, int(port)


class _Handler(WSGIRequestHandler):
    timeout = SECONDS  # that a client may be silent

    def log_message(self, *arguments: Any) -> None:
        """Writes nothing: a scrape is not worth a line."""


class _Server(WSGIServer):
    """A thread for each of the few connections that may be open at once."""

    request_queue_size = 16

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        threading.Thread(target=self._serve, args=(request, client_address), name="metrics", daemon=True).start()

    def _serve(self, request: Any, client_address: Any) -> None:
        late = threading.Timer(
            SECONDS, _end, args=(request,)
        )  # ``timeout`` alone would let a client say a word now and then
        late.daemon = True
        late.start()
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # it went, or was late
        finally:
            late.cancel()
            self.shutdown_request(request)
            self._free.release()


def _end(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        request.shutdown(socket.SHUT_RDWR)


def _server_class(host: str) -> type[_Server]:
    if ":" not in host:
        return _Server
    return type("_Server6", (_Server,), {"address_family": socket.AF_INET6})


class Exposition:
    """An HTTP server on a daemon thread. Port 0 stands for any that is free; ``address`` is where it listens.

    Raises ValueError for a text that is not an address, and OSError where it cannot listen.
    """

    def __init__(self, listen: str) -> None:
        host, port = parse_listen(listen)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else every counter has a second series, which nobody reads
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        app: Callable[..., Any] = make_wsgi_app(self.registry)
        try:
            self._server = make_server(host, port, app, _server_class(host), _Handler)
        except OSError as error:
            why = "port in use" if error.errno == errno.EADDRINUSE else f"{error.strerror}".lower()
            raise OSError(f"cannot serve metrics on {listen}: {why}; choose another with --metrics") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        bound = f"[{host}]" if ":" in host else host
        self.address = f"{bound}:{self._server.server_port}"

    def announce(self) -> None:
        """Says on stdout where the metrics are."""
        print(f"metrics at http://{self.address}/metrics", flush=True)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

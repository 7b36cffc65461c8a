"""Serves a process's metrics to Prometheus over HTTP, from a registry of its own."""

import errno
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, start_http_server

LOOPBACK = "127.0.0.1"


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port of ``[HOST]:PORT`` or ``PORT``; loopback unless a host is named. Raises ValueError."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--metrics {listen}: this is no address; give HOST:PORT, such as {LOOPBACK}:9464")
    return host.strip("[]") or LOOPBACK, int(port)


class Exposition:
    """An HTTP server on a daemon thread. Port 0 stands for any that is free; ``address`` is where it listens.

    Raises ValueError for what is no address and OSError where it cannot listen.
    """

    def __init__(self, listen: str) -> None:
        host, port = parse_listen(listen)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for every counter, of which nothing here makes use
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._server: WSGIServer
        try:
            self._server, self._thread = start_http_server(port, host, self.registry)
        except OSError as error:
            why = "port in use" if error.errno == errno.EADDRINUSE else f"{error.strerror}".lower()
            raise OSError(f"cannot serve metrics on {listen}: {why}; choose another with --metrics") from error
        bound = f"[{host}]" if ":" in host else host
        self.address = f"{bound}:{self._server.server_port}"

    def announce(self) -> None:
        """Says on stdout where the metrics are."""
        print(f"metrics at http://{self.address}/metrics", flush=True)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""TCP ports of this machine."""

import errno
import socket

from culm.pipeline.errors import JobError
from culm.pipeline.rpc import tls


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nobody listens at this machine's port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # A port whose last connections are still closing is free for a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True


def refuse_taken(address: str, flag: str) -> None:
    """Raises JobError where somebody listens at HOST:PORT already. Any other trouble shows when it is listened at."""
    host, _, port = address.rpartition(":")
    if port and int(port) and not is_free(int(port), host.strip("[]") or "0.0.0.0"):
        raise JobError(f"cannot listen on {address}: port in use", flag, f"choose another with {flag}")


def refuse_open(address: str, flag: str) -> None:
    """Raises JobError for an address of a local cluster that everybody may call."""
    if address and tls.is_open(address):
        mend = f"name a port of 127.0.0.1, or set {tls.VARIABLE} to certificates (culm certs init makes some)"
        raise JobError(tls.OPEN, f"{flag} {address}", mend)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

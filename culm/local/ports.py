"""TCP ports of this machine."""

import socket


def is_free(port: int) -> bool:
    """Whether nobody listens at the port of 127.0.0.1."""
    with socket.socket() as probe:
        # A port whose last connections are still closing is free for a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

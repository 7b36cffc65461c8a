"""Where other nodes reach this one."""

import socket

from culm.pipeline.rpc.located import located

WILDCARDS = {"", "0.0.0.0", "[::]", "::"}  # listening on all interfaces is no address to be reached at


def advertised(listen_host: str, port: int, advertise: str, coordinator: str) -> str:
    """``HOST:PORT`` to tell the coordinator. ``advertise``: HOST or HOST:PORT as the user says it, or empty.

    Without it a server on all interfaces is reached at the address from which it reaches the coordinator. Raises
    OSError where that cannot be found out.
    """
    if advertise:
        _, colon, said = advertise.rpartition(":")
        return advertise if colon and said.isdigit() else f"{advertise}:{port}"
    if listen_host not in WILDCARDS:
        return f"{listen_host}:{port}"
    own = _towards(located(coordinator)) or _of_the_host()
    if not own:
        raise OSError("cannot tell where others reach this node; say it with --advertise HOST")
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


def _towards(coordinator: str) -> str:
    """The address of the interface that the route to the coordinator begins at, or nothing."""
    host, _, port = coordinator.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: looks up the route and sends nothing
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return ""


def _of_the_host() -> str:
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return "" if own.startswith("127.") else own

"""gRPC options: a dead peer is noticed at once, a frozen one after the patience; no two servers share a port; what is
on its way to a reader is bounded.
"""

import re

import grpc

from culm.pipeline.patience import DEFAULT, Patience
from culm.pipeline.text import told

Options = list[tuple[str, int]]
# What gRPC says where nobody listens: the address is all that a reader wants of it.
UNREACHED = re.compile(
    r"failed to connect to all addresses; last error: \w+: ipv[46]:(\S+): Failed to connect to remote host: (.*)", re.S
)

# Bytes that a peer may send on a stream ahead of what was read here. Left to itself gRPC makes this larger and larger
# where a reader is slower than the connection, as a node is that has work to do: with three peers a node had 300 MB of
# messages in memory that nobody had read. A stream gives so many bytes a round trip at most. Linux by itself lets a
# connection have 6 MB under way (tcp_rmem), so no link is slower for it.
WINDOW = 1 << 23
_WINDOW: Options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW)]


def _keepalive(patience: Patience) -> Options:
    ping = round(patience.ping * 1000)
    return [
        ("grpc.keepalive_time_ms", ping),
        ("grpc.keepalive_timeout_ms", ping),
        ("grpc.http2.ping_timeout_ms", ping),  # C-core obeys this one for a frozen peer
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # no bound: by default the pings of a quiet connection stop after two
    ]


def channel_options(patience: Patience = DEFAULT) -> Options:
    """For every client channel."""
    return [
        *_keepalive(patience),
        *_WINDOW,
        # A server that starts again is to be found soon, so the wait between two attempts stays short.
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", round(patience.connect * 1000)),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]


def server_options(patience: Patience = DEFAULT) -> Options:
    """For every server."""
    return [
        *_keepalive(patience),
        *_WINDOW,
        # By default a server ends a connection whose client pings as often as these clients do.
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),  # by default two servers may listen at one port, and each gets a part of the callers
    ]


def details(error: grpc.RpcError) -> str:
    """What a failed call says, in words."""
    said = getattr(error, "details", None)
    return told(UNREACHED.sub(r"no connection to \1: \2", str(said()) if callable(said) else str(error)))

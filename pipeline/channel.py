"""gRPC options: a dead or frozen peer is noticed in about a second, and no two servers share a port."""

import grpc

Options = list[tuple[str, int]]

# What one attempt to connect may take: some round trips. Where nobody listens it fails at once all the same.
CONNECT_MS = 1000

_KEEPALIVE: Options = [
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),  # what C-core really obeys for a peer that is frozen
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


def channel_options() -> Options:
    """For every client channel."""
    return [
        *_KEEPALIVE,
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]


def server_options() -> Options:
    """For every server."""
    return [
        *_KEEPALIVE,
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def details(error: grpc.RpcError) -> str:
    """What a failed call says, in words."""
    said = getattr(error, "details", None)
    return str(said()) if callable(said) else str(error)

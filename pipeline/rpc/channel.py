"""gRPC options: a dead peer is noticed at once, a frozen one by the patience, and no two servers share a port."""

import grpc

from culm.pipeline.patience import DEFAULT, Patience
from culm.pipeline.text import told

Options = list[tuple[str, int]]


def _keepalive(patience: Patience) -> Options:
    ping = round(patience.ping * 1000)
    return [
        ("grpc.keepalive_time_ms", ping),
        ("grpc.keepalive_timeout_ms", ping),
        ("grpc.http2.ping_timeout_ms", ping),  # what C-core really obeys for a peer that is frozen
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def channel_options(patience: Patience = DEFAULT) -> Options:
    """For every client channel."""
    return [
        *_keepalive(patience),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", round(patience.connect * 1000)),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]


def server_options(patience: Patience = DEFAULT) -> Options:
    """For every server."""
    return [
        *_keepalive(patience),
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def details(error: grpc.RpcError) -> str:
    """What a failed call says, in words."""
    said = getattr(error, "details", None)
    return told(str(said()) if callable(said) else str(error))

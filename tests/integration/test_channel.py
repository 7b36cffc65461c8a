"""What gRPC's options promise, seen on a real connection."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from culm.pipeline.rpc.channel import WINDOW, channel_options, server_options

PIECE = bytes(1 << 21)
READ_AT_ONCE = 150  # pieces: by then gRPC's own window, if it has one, has grown
STANDS_STILL = 0.5  # seconds in which a sender that may send would have sent


class SlowReader:
    """Reads some pieces as fast as they come, and then one at a time, each after two more have been sent."""

    def __init__(self, most: int) -> None:
        """``most``: ahead of what was read; then it gives up."""
        self.ahead = 0
        self._most = most
        self._sent = threading.Semaphore(0)

    def pieces(self) -> Iterator[bytes]:
        while True:
            self._sent.release()
            yield PIECE

    def take(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in range(READ_AT_ONCE):
            next(requests)
            self._sent.acquire()
        sent = read = 0
        while sent - read < self._most and self._sent.acquire(timeout=STANDS_STILL):
            sent += 1
            if sent % 2 == 0:
                next(requests)
                read += 1
        self.ahead = sent - read
        yield b""


def test_a_reader_that_is_slow_has_a_bounded_number_of_bytes_on_their_way() -> None:
    reader = SlowReader(most=4 * WINDOW // len(PIECE))
    server = grpc.server(ThreadPoolExecutor(1), options=server_options())
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(reader.take)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Take": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
        method: Any = channel.stream_stream("/test/Take")
        call = method(reader.pieces())
        assert next(call) == b""
        call.cancel()
    server.stop(0).wait()
    assert reader.ahead * len(PIECE) < 2 * WINDOW

"""A layer's state on its way to a node that is seeded: it is taken only as its holder has sent it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import torch

from culm.pipeline.rpc.channel import server_options
from culm.pipeline.tensors.digests import Corrupted
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import CHUNK_BYTES
from culm.protos import stage_pb2
from culm.protos.stage_pb2_grpc import StageServicer, StageStub, add_StageServicer_to_server
from culm.stage_server.compute.loan import Loan
from culm.stage_server.streams.fetch import fetch_layers
from culm.stage_server.streams.receiver import Receiver
from tests.integration.test_receiver import Taker

STATE = {3: Value((("parameter.weight", torch.rand(CHUNK_BYTES)),)), 4: Value(())}  # the first in several pieces


class Holder(Taker):
    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        for layer in layers:
            yield layer, 7, Loan(STATE[layer])


class Between(StageServicer):
    """Hands a holder's answers on, with a bit flipped in the last piece that has bytes."""

    def __init__(self, holder: str) -> None:
        self._holder = StageStub(grpc.insecure_channel(holder))

    def Deliver(  # noqa: N802
        self, request_iterator: Iterator[stage_pb2.DeliverRequest], context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.DeliverResponse]:
        yield from ()

    def Fetch(  # noqa: N802
        self, request: stage_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.FetchResponse]:
        for response in self._holder.Fetch(request):
            if response.HasField("digest") and response.payload:
                response.payload = response.payload[:-1] + bytes([response.payload[-1] ^ 128])
            yield response


@pytest.fixture
def holder() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(max_workers=4), options=server_options())
    Receiver(Holder()).serve(server)
    yield from _listening(server)


@pytest.fixture
def between(holder: str) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(max_workers=4), options=server_options())
    add_StageServicer_to_server(Between(holder), server)
    yield from _listening(server)


def _listening(server: grpc.Server) -> Iterator[str]:
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def fetched(address: str, *layers: int) -> dict[int, Value]:
    taken: dict[int, Value] = {}
    fetch_layers(address, layers, 0, lambda layer, version, state: taken.update({layer: state}), at_once=True)
    return taken


def test_state_comes_with_the_digest_of_its_bytes(holder: str) -> None:
    taken = fetched(holder, 3, 4)
    assert torch.equal(taken[3].tensor(), STATE[3].tensor())
    assert {layer: state.digest for layer, state in taken.items()} == {n: state.digest for n, state in STATE.items()}


def test_state_that_was_changed_on_the_way_is_not_taken(between: str) -> None:
    assert fetched(between, 4).keys() == {4}, "it has no bytes to change"
    with pytest.raises(Corrupted, match="8388608 bytes"):
        fetched(between, 3)

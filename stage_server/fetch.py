"""Fetching layers' state from a holder, off the compute thread."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

import grpc

from pipeline.channel import details
from pipeline.errors import JobError
from pipeline.plan import Member
from pipeline.tls import open_channel
from pipeline.values import Value
from pipeline.wire import Assembler
from protos import stage_pb2
from protos.stage_pb2_grpc import StageStub

RETRY_SECONDS = 0.2


class FetchListener(Protocol):
    """Who asked. Called on the fetch's thread."""

    def fetched(self, era: int, layer: int, version: int, state: Value) -> None: ...

    def fetch_failed(self, era: int, peer: str, layers: list[int], why: str) -> None: ...


def fetch_layers(
    address: str, layers: tuple[int, ...], era: int, take: Callable[[int, int, Value], None], at_once: bool = False
) -> None:
    """Streams the layers' state from the holder at ``address``; ``take(layer, version, state)`` gets each.

    ``at_once``: as fast as it goes, since nobody is training.

    Raises grpc.RpcError when the holder is gone or holds no copy.
    """
    with open_channel(address, "stage") as channel:
        assembler: Assembler | None = None
        request = stage_pb2.FetchRequest(layers=layers, era=era, at_once=at_once)
        for response in StageStub(channel).Fetch(request):
            if response.HasField("header"):
                assembler = Assembler(response.header)
            assert assembler is not None, "a layer's first piece carries its header"
            assembler.add(response.offset, response.payload)
            if assembler.complete:
                take(response.layer, response.version, assembler.value())
                assembler = None


class Fetcher:
    """Runs each fetch on a thread of its own."""

    def __init__(self, listener: FetchListener) -> None:
        self._listener = listener

    def fetch(self, source: Member, layers: tuple[int, ...], era: int) -> None:
        threading.Thread(target=self._fetch, args=(source, layers, era), name="fetch", daemon=True).start()

    def _fetch(self, source: Member, layers: tuple[int, ...], era: int) -> None:
        missing = list(layers)

        def take(layer: int, version: int, state: Value) -> None:
            missing.remove(layer)
            self._listener.fetched(era, layer, version, state)

        try:
            fetch_layers(source.address, layers, era, take)
        except (grpc.RpcError, JobError) as error:
            why = details(error) if isinstance(error, grpc.RpcError) else str(error)
            time.sleep(RETRY_SECONDS)  # it may be asked again at once
            self._listener.fetch_failed(era, source.node, missing, why)

"""Fetching layers' state from a holder, off the compute thread."""

# A fetch asks for several layers and gets them one after the other, each whole at one version, as the holder has it
# between two pieces of its work. What has not come when the stream ends is told, and asked for again, from another
# holder first (``worker.holdings``). Nothing is taken that was not asked for, and nothing of another shape (rule 18).

import threading
import time
from collections.abc import Callable
from typing import Protocol

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.patience import DEFAULT, Patience
from culm.pipeline.plan import Member
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.tls import open_channel
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler
from culm.protos import stage_pb2
from culm.protos.stage_pb2_grpc import StageStub
from culm.stage_server.streams.stream_bounds import RunShape, fetched_problem
from culm.stage_server.streams.unfit import Unfit, refuse

# Before a failure is told: the worker may ask the same holder at once, if there is no other, and would do so without
# end.
RETRY_SECONDS = 0.2


class FetchListener(Protocol):
    """Who asked. Called on the fetch's thread."""

    def fetched(self, era: int, layer: int, version: int, state: Value) -> None: ...

    def fetch_failed(self, era: int, peer: str, layers: list[int], why: str) -> None: ...


def fetch_layers(
    address: str,
    layers: tuple[int, ...],
    era: int,
    take: Callable[[int, int, Value], None],
    at_once: bool = False,
    run: RunShape | None = None,
    patience: Patience = DEFAULT,
) -> None:
    """Streams the layers' state from the holder at ``address``; ``take(layer, version, state)`` gets each.

    ``at_once``: as fast as it goes, since nobody is training. ``patience``: for a holder that is silent.

    Raises grpc.RpcError when the holder is gone or holds no copy, ValueError when it sends what it was not asked for,
    or what is no state of the layer in this ``run``.
    """
    with open_channel(address, "stage", patience) as channel:
        assembler: Assembler | None = None
        wanted = list(layers)
        layer = version = 0
        request = stage_pb2.FetchRequest(layers=layers, era=era, at_once=at_once)
        for response in StageStub(channel).Fetch(request):
            if response.HasField("header"):
                refuse(fetched_problem(response, wanted, run))
                assembler, layer, version = Assembler(response.header), response.layer, response.version
            if assembler is None or (response.layer, response.version) != (layer, version):
                raise Unfit(f"a piece of layer {response.layer} comes without its header")
            assembler.add(response.offset, response.payload)
            if assembler.complete:
                wanted.remove(layer)
                take(layer, version, assembler.value())
                assembler = None
        if wanted:
            raise Unfit(f"the layers {wanted} have not come")


class Fetcher:
    """Runs each fetch on a thread of its own."""

    def __init__(self, listener: FetchListener, patience: Patience, run: RunShape | None = None) -> None:
        self._listener = listener
        self._patience = patience
        self._run = run

    def fetch(self, source: Member, layers: tuple[int, ...], era: int) -> None:
        threading.Thread(target=self._fetch, args=(source, layers, era), name="fetch", daemon=True).start()

    def _fetch(self, source: Member, layers: tuple[int, ...], era: int) -> None:
        missing = list(layers)

        def take(layer: int, version: int, state: Value) -> None:
            missing.remove(layer)
            self._listener.fetched(era, layer, version, state)

        try:
            fetch_layers(source.address, layers, era, take, run=self._run, patience=self._patience)
        except (grpc.RpcError, JobError, ValueError) as error:
            why = details(error) if isinstance(error, grpc.RpcError) else str(error)
            time.sleep(RETRY_SECONDS)  # it may be asked again at once
            self._listener.fetch_failed(era, source.node, missing, why)

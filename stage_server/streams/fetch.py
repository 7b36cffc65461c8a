"""Fetching layers' state from a holder, off the compute thread."""

# A fetch asks for several layers and gets them one after the other, each whole at one version, as the holder has it
# between two pieces of its work:
#
#     node being seeded                                 holder
#      │ FetchRequest: layers 3, 4, era 2 ──────────────▶│ waits until its compute thread is between two pieces of
#      │                                                 │ work, lends layer 3, and lets compute go on
#      │ ◀── layer 3, version 7, header, piece, piece ... ┤ at the rate of [resilience] seed_bytes_per_second
#      │ to the worker at once                           │ step 7 is committed meanwhile: what is not sent is copied
#      │ ◀── layer 4, version 8, header, piece ... ───────┤ so the versions of two layers may differ (rule 11)
#
# What has not come when the stream ends is told to the worker, which asks for it again, from another holder first
# (``worker.holdings``). Layers that have come are kept. Nothing is taken that was not asked for, and nothing of another
# shape (rule 18).
#
# Each fetch has a thread of its own, which takes the node's lock for each whole layer. It is never cancelled: when the
# plan changes meanwhile, the worker drops what it does not need (``Worker.fetched``).

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
from culm.pipeline.tensors.digests import Corrupted
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler
from culm.protos import stage_pb2
from culm.protos.stage_pb2_grpc import StageStub
from culm.stage_server.streams.stream_bounds import RunShape, fetched_problem
from culm.stage_server.streams.unfit import Unfit, refuse

# From a failure until the worker hears of it. Where there is no other holder the worker asks the same one at once, and
# without this pause it would open streams in a loop.
RETRY_SECONDS = 0.2


class FetchListener(Protocol):
    """Who asked. Called on the fetch's thread."""

    def fetched(self, era: int, layer: int, version: int, state: Value, source: str) -> None: ...

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

    ``at_once``: as fast as it goes, since nobody is training, or no other copy is there. ``patience``: for a holder
    that is silent.

    Raises grpc.RpcError when the holder is gone or holds no copy, ValueError when it sends what it was not asked for,
    or what is no state of the layer in this ``run``, and Corrupted when other bytes come than it has sent.
    """
    with open_channel(address, "stage", patience) as channel:
        assembler: Assembler | None = None
        wanted = list(layers)
        layer = version = 0
        request = stage_pb2.FetchRequest(layers=layers, era=era, at_once=at_once)
        for response in StageStub(channel).Fetch(request):
            if response.HasField("header"):  # before memory is set aside for the layer
                refuse(fetched_problem(response, wanted, run))
                assembler, layer, version = Assembler(response.header), response.layer, response.version
            if assembler is None or (response.layer, response.version) != (layer, version):
                raise Unfit(f"a piece of layer {response.layer} comes before the header that describes it")
            assembler.add(response.offset, response.payload)
            if assembler.complete:
                wanted.remove(layer)
                take(layer, version, assembler.value(response.digest if response.HasField("digest") else None))
                assembler = None
        if wanted:
            raise Unfit(f"the stream ended before layers {wanted} came")


class Fetcher:
    """Runs each fetch on a thread of its own."""

    def __init__(self, listener: FetchListener, patience: Patience, run: RunShape | None = None) -> None:
        self._listener = listener
        self._patience = patience
        self._run = run

    def fetch(self, source: Member, layers: tuple[int, ...], era: int, at_once: bool = False) -> None:
        arguments = source, layers, era, at_once
        threading.Thread(target=self._fetch, args=arguments, name="fetch", daemon=True).start()

    def _fetch(self, source: Member, layers: tuple[int, ...], era: int, at_once: bool) -> None:
        missing = list(layers)  # of this thread alone, as ``take`` is

        def take(layer: int, version: int, state: Value) -> None:
            missing.remove(layer)
            self._listener.fetched(era, layer, version, state, source.node)

        try:
            fetch_layers(source.address, layers, era, take, at_once, self._run, self._patience)
        except (grpc.RpcError, JobError, ValueError, Corrupted) as error:
            why = details(error) if isinstance(error, grpc.RpcError) else str(error)
            time.sleep(RETRY_SECONDS)
            self._listener.fetch_failed(era, source.node, missing, why)

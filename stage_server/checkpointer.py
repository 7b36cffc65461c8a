"""Writes this node's share of checkpoints and reads layers from one, off the compute thread."""

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.checkpoint import read_layer, write_layer
from pipeline.errors import JobError
from pipeline.manifest import CheckpointCorrupt, File, folder_of, read_manifest
from pipeline.values import Value

log = logging.getLogger("culm.checkpoint")


@dataclass(frozen=True)
class Share:
    """Copies of layers, all at version ``step``, to be written."""

    era: int
    step: int
    layers: tuple[tuple[int, Value], ...]


class CheckpointListener(Protocol):
    """Who is told. Called on the checkpointer's threads."""

    def saved(self, era: int, step: int, files: dict[int, tuple[File, ...]]) -> None: ...

    def fetched(self, era: int, layer: int, version: int, state: Value) -> None: ...

    def checkpoint_bad(self, step: int, why: str) -> None: ...


class Checkpointer:
    """One writing thread; a share that is still waiting when the next one comes is dropped: the next is newer."""

    def __init__(self, url: str, listener: CheckpointListener) -> None:
        self._url = url
        self._listener = listener
        self._shares: queue.Queue[Share | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def write(self, share: Share) -> None:
        self._shares.put(share)

    def close(self, patience: float) -> None:
        """Waits for what is being written, but no longer than ``patience`` seconds."""
        self._shares.put(None)
        self._thread.join(patience)

    def _run(self) -> None:
        while (share := self._shares.get()) is not None:
            folder = folder_of(self._url, share.step)
            try:
                files = {layer: write_layer(folder, layer, state) for layer, state in share.layers}
            except (OSError, JobError) as error:
                log.warning("the checkpoint of step %d cannot be written: %s", share.step, error)
                continue
            self._listener.saved(share.era, share.step, files)

    def read(self, folder: str, step: int, layers: Sequence[int], era: int) -> None:
        """Gives the layers' state as of the checkpoint to the listener, on a thread of its own."""
        threading.Thread(target=self._read, args=(folder, step, layers, era), name="restore", daemon=True).start()

    def _read(self, folder: str, step: int, layers: Sequence[int], era: int) -> None:
        try:
            manifest = read_manifest(folder)
            for layer in layers:
                self._listener.fetched(era, layer, step, read_layer(folder, manifest, layer))
        except (CheckpointCorrupt, JobError, OSError) as error:
            log.warning("the checkpoint %s cannot be read: %s", folder, error)
            self._listener.checkpoint_bad(step, str(error))

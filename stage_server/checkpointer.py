"""Writes this node's share of checkpoints, off the compute thread, and again until the storage takes it."""

# Where a mount is gone, the disk below it takes a share like any other. Once the mount is back the share is not there,
# and the coordinator, which looks at every file, writes no manifest. A later checkpoint makes good for that, but for
# the last step's there is none. So the node looks from time to time whether what it wrote of it is there, until a
# manifest is. What is not there it saves once more: the layers are still at that step. No copy is kept for that.

import logging
import threading
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from culm.pipeline.checkpoints import bookmark_file, storage
from culm.pipeline.checkpoints.layer_file import write_layer
from culm.pipeline.checkpoints.manifest import MANIFEST, File, folder_of, manifest_before
from culm.pipeline.errors import JobError
from culm.stage_server.compute.loan import Loan
from culm.stage_server.worker.work import Save

log = logging.getLogger("culm.checkpoint")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds between two attempts
LOOK_SECONDS = 5.0  # between two looks at what was written of the last step


@dataclass(frozen=True)
class Share:
    """Layers to be written: what is asked for, and each layer's state at that step, whatever it is by now."""

    asked: Save
    layers: tuple[tuple[int, Loan], ...]

    @property
    def step(self) -> int:
        return self.asked.step

    def end(self) -> None:
        """Nothing of it is read any more."""
        for _, loan in self.layers:
            loan.end()


class Failed(NamedTuple):
    """An attempt to write a share."""

    why: str
    for_good: bool  # no later attempt will do better


class CheckpointListener(Protocol):
    """Who is told. Called on the checkpointer's thread."""

    def saved(self, share: Share, files: dict[int, tuple[File, ...]]) -> None: ...

    def unwritten(self, step: int, why: str) -> None: ...

    def vanished(self) -> None:
        """Files of the last step that were written are not there. They are to be saved once more."""
        ...


class Checkpointer:
    """One writing thread. A share that still waits, or fails, when the next one comes is dropped: the next is newer."""

    def __init__(self, url: str, listener: CheckpointListener) -> None:
        self._url = url
        self._listener = listener
        self._last_folder = ""  # of the last step's checkpoint; empty: it is not known yet which step that is
        # Names of the last step's files that this node has written, until a manifest is beside them. Of the writing
        # thread alone.
        self._last_files: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._waiting: Share | None = None  # the one share that the writing thread has not begun with
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def write(self, share: Share) -> None:
        with self._changed:
            if self._waiting is not None:
                log.warning("this node's share of checkpoint %d is passed over for a newer one", self._waiting.step)
                self._waiting.end()
            self._waiting = share  # memory for one share that waits, however slow the storage is
            self._changed.notify_all()

    def close(self, patience: float) -> None:
        """Waits for what is being written, but no longer than ``patience`` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(patience)

    def _run(self) -> None:
        while (share := self._next()) is not None:
            try:
                self._write(share)
            finally:
                share.end()
            del share  # as much memory as what the node holds: not until the next one comes

    def _next(self) -> Share | None:
        """The next share to be written; None: this process is to end."""
        while True:
            with self._changed:
                pause = LOOK_SECONDS if self._last_files else None
                if self._changed.wait_for(lambda: self._waiting is not None or self._closed, pause):
                    share, self._waiting = self._waiting, None
                    return share
            self._look()

    def _look(self) -> None:
        """Whether what was written of the last step is there."""
        folder = self._last_folder
        try:
            there = storage.sizes(folder)
        except Exception:  # a storage that does not answer; it is asked again
            return
        absent = sorted(self._last_files - there.keys())
        if MANIFEST in there or absent:
            self._last_files = frozenset()
        if absent and MANIFEST not in there:
            log.warning("%s/%s was written and is not there: this node's share is saved once more", folder, absent[0])
            self._listener.vanished()

    def _write(self, share: Share) -> None:
        """Until it is written, or a newer one waits, or this process is to end."""
        pause, told = FIRST_PAUSE, ""
        while (failed := self._attempt(share)) is not None:
            if failed.why != told:
                told = failed.why
                log.warning("cannot write this node's share of checkpoint %d: %s", share.step, told)
            # Each time: a coordinator that has taken over since does not know it.
            self._listener.unwritten(share.step, " ".join(told.split())[:500])
            if failed.for_good:
                return
            with self._changed:
                if self._changed.wait_for(lambda: self._waiting is not None or self._closed, pause):
                    return
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _attempt(self, share: Share) -> Failed | None:
        """Writes the share. Nobody waits in here, where an exception would keep half-written files in memory."""
        folder = folder_of(self._url, share.step)
        try:
            before = manifest_before(folder)
            files = {layer: write_layer(folder, layer, x.value, before, x.read) for layer, x in share.layers}
            # After the layer, which takes away the manifest of another run's checkpoint; before it is told, so that no
            # manifest comes without it.
            if 0 in files:
                bookmark_file.put(folder, share.asked.bookmark)
        except Exception as error:  # libraries of storage raise what they like; the node is none the worse for it
            return Failed(str(error) or type(error).__name__, isinstance(error, JobError))
        if share.asked.last:
            self._last_folder = folder
            self._last_files = frozenset(file.name for of_layer in files.values() for file in of_layer)
        self._listener.saved(share, files)
        return None

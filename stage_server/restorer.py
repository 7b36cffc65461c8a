"""Reads the layers that an era begins with from its origin, for as long as the storage takes (rule 14).

What is read is compared with the origin's own manifest. A file that has its hash, and is of another model, is a proof
against the checkpoint. A storage that does not answer, shows no such manifest or gives other bytes is asked again,
since it may be this machine's disk or mount. The coordinator is told, which looks itself and shows it to the user, and
the worker, which asks the other holders meanwhile. Both also hear of an attempt that takes long: its share may be
large, or the storage may hang, and nothing has failed so far.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from culm.pipeline.checkpoints.layer_file import read_layer
from culm.pipeline.checkpoints.manifest import (
    CheckpointCorrupt,
    FileDamaged,
    Manifest,
    OriginUnseen,
    read_origin,
)
from culm.pipeline.errors import JobError
from culm.pipeline.identity import options_changed
from culm.pipeline.job import Job, parse_job
from culm.pipeline.origin import Origin
from culm.pipeline.tensors.values import Value
from culm.stage_server.compute.optimizer_state import held_over

log = logging.getLogger("culm.checkpoint")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds between two attempts
OVERDUE = 10.0  # seconds after which an attempt that has not ended is told of


class RestoreListener(Protocol):
    """Who is told. Called on the restorer's threads."""

    def fetched(self, era: int, layer: int, version: int, state: Value) -> None: ...

    def lacks(self, era: int, layer: int) -> bool:
        """Whether the layer's state is still wanted: an era may be over, or another holder may have given it."""
        ...

    def unread(self, era: int, origin: Origin, why: str, absent: bool, damaged_layer: int | None) -> None:
        """An attempt has failed."""
        ...

    def being_read(self, era: int, origin: Origin, seconds: float) -> None:
        """The attempt has lasted for so long, and goes on."""
        ...

    def checkpoint_bad(self, era: int, origin: Origin, why: str) -> None: ...


class Restorer:
    """One thread for each era that is begun; it ends when the layers are here or wanted no longer."""

    def __init__(self, listener: RestoreListener, job: Job | None = None) -> None:
        self._listener = listener
        self._job = job  # None: all is taken as it is there
        self._closed = threading.Event()

    def read(self, origin: Origin, layers: Sequence[int], era: int) -> None:
        """Gives the layers' state as of the origin to the listener, on a thread of its own."""
        threading.Thread(target=self._run, args=(origin, list(layers), era), name="restore", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _fitted(self, state: Value, manifest: Manifest) -> Value:
        """Without the options of the job's own optimizer that this job says otherwise: those are as the job says. What
        another one has kept is of no use to this one, which begins anew.
        """
        if self._job is None or not manifest.job_toml:
            return state
        changed = options_changed(parse_job(manifest.job_toml, "the checkpoint's job"), self._job)
        return Value(held_over(state.tensors, changed))

    def _run(self, origin: Origin, layers: list[int], era: int) -> None:
        pause, told, doubted = FIRST_PAUSE, "", False
        layer = 0
        while layers := [layer for layer in layers if self._listener.lacks(era, layer)]:
            absent, damaged = False, None
            try:
                with _Overdue(self._listener, origin, era):
                    manifest = read_origin(origin)
                    for layer in layers:
                        if self._closed.is_set() or not self._listener.lacks(era, layer):
                            continue
                        state = self._fitted(read_layer(origin.folder, manifest, layer), manifest)
                        self._listener.fetched(era, layer, origin.step, state)
                return
            except FileDamaged as error:
                why, damaged = error.problem, layer if doubted else None
                doubted = True  # the second time: it is no accident of one answer
            except CheckpointCorrupt as error:
                why = error.problem
                if doubted:
                    log.warning("%s is bad, and the coordinator is told: %s", origin, why)
                    self._listener.checkpoint_bad(era, origin, why)
                    return
                doubted = True
            except OriginUnseen as error:
                why, absent = str(error), True
            except (OSError, JobError) as error:
                why = " ".join(str(error).split())[:500]
            if why != told:
                log.warning("cannot read %s, trying again: %s", origin, why)
                told = why
            self._listener.unread(era, origin, why, absent, damaged)
            if self._closed.wait(pause):
                return
            pause = min(LONGEST_PAUSE, 2 * pause)


class _Overdue:
    """Tells the listener, again and again, that an attempt goes on: a storage that hangs may never answer."""

    def __init__(self, listener: RestoreListener, origin: Origin, era: int, every: float = OVERDUE) -> None:
        self._listener, self._origin, self._era, self._every = listener, origin, era, every
        self._over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="restore-watch", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        told = 0
        while not self._over.wait(self._every):
            told += 1
            self._listener.being_read(self._era, self._origin, told * self._every)

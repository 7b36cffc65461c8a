"""A node and the storage of checkpoints: its shares go there, and what an era begins with comes from there."""

import logging
from collections.abc import Callable
from typing import Protocol

from culm.pipeline.checkpoints.manifest import File
from culm.pipeline.job import Job
from culm.pipeline.origin import Origin
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.checkpointer import Checkpointer, Share
from culm.stage_server.compute.loan import Loan
from culm.stage_server.restorer import Restorer
from culm.stage_server.streams import attend_messages
from culm.stage_server.turn import Turn
from culm.stage_server.worker.effects import RestoreLayers
from culm.stage_server.worker.holdings import CHECKPOINT
from culm.stage_server.worker.work import Install, Save
from culm.stage_server.worker.worker import Worker

log = logging.getLogger("culm.checkpoint")

PATIENCE = 10.0  # seconds that an orderly end waits for a checkpoint being written
LAST_PATIENCE = 60.0  # and that a failing node waits for the last one: no other will hold its layers' final weights


class Owner(Protocol):
    """The node. ``changed`` guards its worker."""

    worker: Worker[Value]
    changed: Turn

    def fetched(self, era: int, layer: int, version: int, state: Value, source: str) -> None: ...

    def after_event(self) -> None: ...


class Checkpoints:
    """Between the threads that write and read files and the worker."""

    def __init__(self, node: Owner, job: Job, report: Callable[[pb.AttendRequest], None]) -> None:
        self._node = node
        self._report = report
        self._restorer = Restorer(self, job)
        self._checkpointer: Checkpointer | None = None
        if job.checkpoint is not None:
            self._checkpointer = Checkpointer(job.checkpoint.url, self)
        self._saved: pb.AttendRequest | None = None  # the last share written
        self._bad: tuple[int, pb.AttendRequest] | None = None  # the era whose origin is bad, and the proof

    def facts(self) -> list[pb.AttendRequest]:
        """What a coordinator may have missed. Called with the node's lock held."""
        proof = self._bad[1] if self._bad is not None and self._bad[0] == self._node.worker.era else None
        return [fact for fact in (self._saved, proof) if fact is not None]

    def write(self, work: Save, lent: tuple[tuple[int, Loan], ...]) -> None:
        if self._checkpointer is not None:
            self._checkpointer.write(Share(work, lent))

    def read(self, effect: RestoreLayers) -> None:
        log.info("reading layers %s from %s", effect.layers, effect.origin)
        self._restorer.read(effect.origin, effect.layers, effect.era)

    def refuse(self, work: Install[Value], why: str) -> None:
        """The state of a layer is of another one. If the checkpoint gave it, that is proved bad (rule 14); if another
        node did, nothing is said against the checkpoint. Called with the node's lock held.
        """
        worker = self._node.worker
        wanted, plan = worker.holdings.refuse(), worker.plan
        source = work.source or (plan.origin if plan is not None else "the checkpoint")
        log.error("layer %d from %s is not taken, since it does not fit the model: %s", work.layer, source, why)
        if not wanted or plan is None:
            return
        if work.source == CHECKPOINT:
            self.checkpoint_bad(plan.era, plan.origin, f"layer {work.layer} does not fit: {why}")
        else:  # another holder is asked first, and the checkpoint goes on being read where the layer is wanted from it
            worker.fetch_failed(plan.era, work.source, [work.layer])

    def finish(self) -> None:
        """Waits until the last share is written. Nothing is written after that."""
        if self._checkpointer is not None:
            self._checkpointer.close(LAST_PATIENCE)

    def close(self) -> None:
        self._restorer.close()
        if self._checkpointer is not None:
            self._checkpointer.close(PATIENCE)

    # ---- what the checkpointer says ---------------------------------------------------------------------------------

    def saved(self, share: Share, files: dict[int, tuple[File, ...]]) -> None:
        with self._node.changed:  # or an announcement may miss it, and the report be dropped before that
            self._saved = attend_messages.saved(share.asked, files)
            self._report(self._saved)

    def unwritten(self, step: int, why: str) -> None:
        self._report(pb.AttendRequest(checkpoint_fault=pb.CheckpointFault(step=step, why=why)))

    def vanished(self) -> None:
        with self._node.changed:
            self._node.worker.applying.save_again()
            self._node.after_event()

    # ---- what the restorer asks and says ----------------------------------------------------------------------------

    def fetched(self, era: int, layer: int, version: int, state: Value) -> None:
        self._node.fetched(era, layer, version, state, CHECKPOINT)

    def lacks(self, era: int, layer: int) -> bool:
        with self._node.changed:
            return era == self._node.worker.era and self._node.worker.holdings.lacks(layer)

    def unread(self, era: int, origin: Origin, why: str, absent: bool, damaged_layer: int | None) -> None:
        self._ask_others(era)
        self._report(attend_messages.unread(era, origin, why, absent, damaged_layer))

    def being_read(self, era: int, origin: Origin, seconds: float) -> None:
        self._ask_others(era)
        self._report(attend_messages.being_read(era, origin, seconds))

    def _ask_others(self, era: int) -> None:
        with self._node.changed:
            self._node.worker.unread(era)
            self._node.after_event()

    def checkpoint_bad(self, era: int, origin: Origin, why: str) -> None:
        with self._node.changed:  # as in ``saved``
            self._bad = (era, attend_messages.checkpoint_bad(origin, why))
            self._report(self._bad[1])

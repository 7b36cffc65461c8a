"""A fact is put down and reported with the node's lock held, as announcements are made: it is in one of the two."""

import threading
from pathlib import Path
from typing import cast

from culm.pipeline.job import load_job
from culm.pipeline.origin import Origin
from culm.pipeline.schedule import Schedule
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.attendance import Attendance
from culm.stage_server.checkpoint_share import Checkpoints
from culm.stage_server.checkpointer import Share
from culm.stage_server.spiller import ALL, Spiller
from culm.stage_server.streams.orders import Orders
from culm.stage_server.turn import Turn
from culm.stage_server.watching.activity import Activity
from culm.stage_server.watching.traffic import Traffic
from culm.stage_server.worker.work import Save
from culm.stage_server.worker.worker import Worker

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"


class Node:
    """Its reports, and whether the lock was held as they were made."""

    def __init__(self) -> None:
        self.changed = Turn(lambda error: None)
        self.worker: Worker[Value] = Worker("n0", 1, Schedule(1), 1)
        self.reports: list[tuple[str | None, bool]] = []

    def report(self, request: pb.AttendRequest) -> None:
        free: list[bool] = []

        def take() -> None:
            if self.changed.acquire(blocking=False):
                free.append(True)
                self.changed.release()

        other = threading.Thread(target=take)
        other.start()
        other.join()
        self.reports.append((request.WhichOneof("body"), not free))

    def fetched(self, era: int, layer: int, version: int, state: Value, source: str) -> None:
        raise AssertionError("nothing is fetched here")

    def after_event(self) -> None:
        return


SAVE = Save(era=0, step=8, layers=(), loss=0.0, last=True)
ORIGIN = Origin(4, "memory://c/step-00000004", "ab" * 32)


def test_a_written_share_and_a_proof_are_told_with_the_lock_held() -> None:
    """A share that was written as the node announced itself was never heard of: the run kept its nodes for nothing."""
    node = Node()
    checkpoints = Checkpoints(node, load_job(EXAMPLE, []), node.report)
    checkpoints.saved(Share(SAVE, ()), {})
    checkpoints.checkpoint_bad(0, ORIGIN, "it has another sha256")
    assert node.reports == [("saved", True), ("checkpoint_bad", True)]


def test_initial_weights_are_told_with_the_lock_held() -> None:
    node = Node()
    spiller = Spiller(node.worker, node.changed, ALL)
    attendance = Attendance(node.worker, node.changed, Activity(0), Traffic(), spiller)
    attendance.begin(cast("Orders", node))
    attendance.report_built(((0, "ab" * 32),))
    assert node.reports == [("built", True)]

"""How long a launcher waits for the checkpoint of the last step before it ends the nodes, which alone can write it."""

# A large share takes as long as the storage needs for it, and shows nothing meanwhile. So there is no bound but these:
#
#     nothing is known to be wrong      until shortly before the coordinator lets the nodes go ([job] keep_after_done)
#     this very checkpoint cannot be    FAULTY_SECONDS, in which nodes try again, since that came or another layer was
#     written, as the status says       written; other words for it are no progress
#
# A fault of an earlier checkpoint does not count: the storage may be well again, and nobody says so before one is
# whole.
#
# A run that failed when every step was trained has nothing else left of it. It is waited for as well, but no longer
# than STILL_SECONDS after another layer was written: a node that would write the next one may be gone.

from culm.pipeline.job import Job
from culm.protos import coordinator_pb2 as pb

FAULTY_SECONDS = 15.0
STILL_SECONDS = 60.0
# For so long before the nodes are let go the launcher needs them: it fetches the weights from them.
FETCH_SECONDS = 10.0


class LastCheckpoint:
    """Of one run. ``now`` in seconds, of a clock that never goes back.

    ``status`` is always of a run that is done, or that failed when every step was trained.
    """

    def __init__(self, job: Job) -> None:
        self._is_wanted = job.checkpoint is not None
        self._keep = job.job.keep_after_done
        self._seen: tuple[int, bool] | None = None  # the layers that are written, and whether there is a fault
        self._changed_at = 0.0

    def look(self, status: pb.GetStatusResponse, now: float) -> None:
        """Notes whether anything has changed. To be called with every status, before ``given_up``."""
        seen = (status.last_layers_saved, bool(self._fault(status)))
        if seen != self._seen:
            self._seen, self._changed_at = seen, now

    def is_whole(self, status: pb.GetStatusResponse) -> bool:
        """Whether it is, or the job asks for none."""
        return not self._is_wanted or status.checkpoint == status.steps

    def given_up(self, status: pb.GetStatusResponse, now: float) -> str:
        """Why it is not worth while to wait any longer; empty: it is, or nothing is to be waited for."""
        if self.is_whole(status):
            return ""
        fault = self._fault(status)
        if fault and now - self._changed_at > FAULTY_SECONDS:
            return fault
        if status.phase == "failed":
            return self._written(status) if now - self._changed_at > STILL_SECONDS else ""
        # 0 is also said by a coordinator that has just taken over, and keeps the nodes as long once more.
        if not status.plan.stages or 0 < status.kept_seconds <= min(FETCH_SECONDS, self._keep / 2):
            why = f"[job] keep_after_done lets the nodes go {self._keep:g} s after the last step"
            return f"{self._written(status)} and {why}: raise it, or see why the storage is slow"
        return ""

    def in_words(self, status: pb.GetStatusResponse) -> str:
        """What is to be said of a run that is done, after that it is."""
        if self.is_whole(status):
            return ""
        fault = self._fault(status)
        return f"; the last checkpoint is being written: {self._written(status)}{f'; {fault}' if fault else ''}"

    def _written(self, status: pb.GetStatusResponse) -> str:
        of = f" of {status.plan.stages[-1].end_layer}" if status.plan.stages else ""  # none: the nodes were let go
        return f"{status.last_layers_saved}{of} layers are written"

    def _fault(self, status: pb.GetStatusResponse) -> str:
        return status.checkpoint_fault if status.checkpoint_fault_step == status.steps else ""

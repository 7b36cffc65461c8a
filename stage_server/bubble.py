"""What a node does in a bubble: it loads samples, runs forwards of stages that it stands by for, and checks."""

# A bubble is the time in which the next instruction's input, or the commit, is not there yet. Own work comes first, and
# the compute thread cannot put a piece of work aside. So in a bubble only that is begun which is expected to be over
# before the wait is (``watching.slack``). One kind is begun in any case: the samples that this node wants next. Without
# them its next forward would have to load them itself, and then everybody waits for the same seconds.
#
# Which microbatches, and which forwards, the worker says (``Runner.next_loads``, ``Worker.next_redundant``).

from culm.pipeline.tensors.values import Value
from culm.stage_server.compute.compute import Compute
from culm.stage_server.watching.activity import Activity
from culm.stage_server.worker.work import Load, Work
from culm.stage_server.worker.worker import Worker


class Bubble:
    """Asked by the compute thread when the worker has no work for it, with the node's lock held."""

    def __init__(self, worker: Worker[Value], compute: Compute, activity: Activity) -> None:
        self._worker = worker
        self._compute = compute
        self._activity = activity

    def load_ahead(self) -> None:
        """Has processes of their own load what the next forwards take, if the job has such. Not only in a bubble."""
        if self._compute.loads_ahead:
            self._compute.want(self._worker.runner.next_loads())

    def load(self) -> Load | None:
        """The next microbatch whose samples are not here; None if there is none, or no time for it, or others load."""
        if self._compute.loads_ahead:
            return None
        loaded = self._compute.loaded
        load = next((load for load in self._worker.runner.next_loads() if load not in loaded), None)
        if load is None or load.step == self._worker.version:
            return load
        # Of the next step. Its first microbatch is wanted right after the commit, the others only later.
        next_one = self._worker.waits_for_commit and load.microbatch == 0
        return load if next_one or self._activity.has_time_for(load) else None

    def redundant(self) -> Work[Value] | None:
        """A forward of a stage that this node stands by for, or a check; None: none is wanted, or no time is left."""
        work = self._worker.next_redundant()
        return work if work is not None and self._activity.has_time_for(work) else None

"""A plan that waits for commits: it is for another cut of the model, and they are not applied yet."""

# A commit that is queued brings the plan of the next cut. Within that very step a node may be lost, and the plan that
# follows overtakes the commit, which waits for a piece of work to end. Keys name stages: under the other cut nobody
# would find the gradients that the commit needs (rule 2). History: such a node gave up what it held.

from culm.pipeline.plan import Plan
from culm.stage_server.worker.position import Position


class Later:
    """The newest such plan, if there is one."""

    def __init__(self) -> None:
        self._plan: Plan | None = None

    def put_off(self, plan: Plan, at: Position) -> bool:
        """Whether the plan has to wait; then it is kept."""
        waits = bool(at.commits) and at.plan is not None and plan.era == at.era and plan.ranges != at.plan.ranges
        if waits and (self._plan is None or self._plan.order < plan.order):
            at.term, self._plan = max(at.term, plan.term), plan
        return waits

    def take(self, at: Position) -> Plan | None:
        """The plan, once every commit that was queued is applied."""
        if at.commits:
            return None
        plan, self._plan = self._plan, None
        return plan

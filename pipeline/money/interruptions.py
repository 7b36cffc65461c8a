"""What lost nodes, rollbacks and lost coordinators cost: how much longer their step took than a calm one."""

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median

# What goes wrong is charged at the next commit, since only then it is known how long the step took.
#
#     step 3 (calm: 5 s)   step 4: n1 is lost                 step 5
#     |--------------------|----------x-----------------------|----
#     commit 2             commit 3   pending                 commit 4: 7 s, so 2 s were lost
#
# - The time lost is what the step took beyond the median of the calm steps before. Several lost nodes of one step share
#   it evenly.
# - A rollback takes all of it alone. Its step began at the mark that the run went back to (``trained_steps``), so the
#   time counts from there. What interruptions since that mark were charged is taken off: nothing is charged twice.
# - A lost second costs what the cluster cost on average in that step.
# - A pause is charged when it ends, with its own time and money. No step is charged with it again: neither the one that
#   it held up, nor one that a rollback takes back behind it.
#
# A commit whose number does not follow tells no length of a step: events of a leader that died are missing between.

CALM_STEPS = 20  # the steps that tell how long one takes when nothing happens: docs/cost.md has the same number
# Each is a row of the cost page. Their seconds stay counted in ``lost_seconds`` when they are left out.
INTERRUPTIONS_KEPT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Time in which nothing new was trained, because of a lost node, a rollback, a lost coordinator or a pause."""

    kind: str  # "lost", "rollback", "coordinator": one was gone, and another took over; or "pause"
    time: float
    step: int
    node: str  # of a lost one; else empty
    seconds: float
    dollars: float


@dataclass(frozen=True, slots=True)
class Pending:
    """Something that went wrong since the last commit; what it cost is known at the next."""

    kind: str
    time: float
    step: int
    node: str


@dataclass(eq=False, kw_only=True)
class Interruptions:
    """Those that are charged, and those that wait for the next commit."""

    charged: list[Interruption] = field(default_factory=list)
    lost_seconds: float = 0.0  # of all that were charged, those left out too
    calm: deque[float] = field(default_factory=lambda: deque(maxlen=CALM_STEPS))  # seconds of each
    pending: deque[Pending] = field(default_factory=lambda: deque(maxlen=INTERRUPTIONS_KEPT))

    def happen(self, kind: str, at: float, step: int, node: str) -> None:
        self.pending.append(Pending(kind, at, step, node))

    def paused(self, *, at: float, step: int, seconds: float, dollars: float) -> None:
        """A pause that began at ``at`` is over. Nothing went wrong: it takes all of its own time, and no step's."""
        self._keep(Interruption(kind="pause", time=at, step=step, node="", seconds=seconds, dollars=dollars))
        self.lost_seconds += seconds

    def pauses_since(self, mark: float) -> tuple[float, float]:
        """Seconds and dollars of the pauses since a commit at ``mark``, or since training began then."""
        # Invariant: what was charged since a commit is no older than that commit, so it is the end of the list.
        since = takewhile(lambda x: x.time >= mark, reversed(self.charged))
        pauses = [x for x in since if x.kind == "pause"]
        return sum(x.seconds for x in pauses), sum(x.dollars for x in pauses)

    def _keep(self, charged: Interruption) -> None:
        self.charged.append(charged)
        del self.charged[:-INTERRUPTIONS_KEPT]

    def step_ended(self, *, began: float, seconds: float, dollars: float, follows: bool) -> bool:
        """A step that began at ``began`` took so long and so much. ``follows``: on the last one that is on record.

        Returns whether it was a calm one.
        """
        if self.pending:
            self._charge(self.lost_in_step(began, seconds), dollars / seconds if seconds > 0 else 0.0)
            return False
        if follows:
            self.calm.append(seconds)
        return follows

    def lost_in_step(self, began: float, seconds: float) -> float:
        """Of a step that began then, was held up, and has taken so long, pauses apart."""
        lost = max(0.0, seconds - (median(self.calm) if self.calm else 0.0))
        if any(p.kind == "rollback" for p in self.pending):
            since = [x for x in self.charged if x.time >= began and x.kind != "pause"]
            lost = max(0.0, lost - sum(x.seconds for x in since))
        return lost

    def _charge(self, lost: float, dollars_per_second: float) -> None:
        rollbacks = [p for p in self.pending if p.kind == "rollback"]
        causes = rollbacks[-1:] or list(self.pending)
        share = lost / len(causes)
        for cause in causes:
            self._keep(
                Interruption(
                    kind=cause.kind,
                    time=cause.time,
                    step=cause.step,
                    node=cause.node,
                    seconds=share,
                    dollars=share * dollars_per_second,
                )
            )
        self.lost_seconds += lost
        self.pending.clear()

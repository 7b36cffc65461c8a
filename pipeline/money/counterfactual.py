"""What the same training would have taken with checkpoints and restarts, while the same nodes were lost."""

from bisect import bisect_right
from dataclasses import dataclass, field

# The same lost nodes and the same node counts, at the same moments, happen to training with checkpoints. One walk over
# those moments says when it would have done the same work:
#
#     begun           lost                  ready                  too few nodes                 done
#       |--- trains ----x---- restart --------|--- trains ------------|  stands still  |-- trains --|
#                       '- back to the last checkpoint: work % checkpoint_seconds is lost
#
# Only a lost node that ran a stage throws training back: a lost spare costs nothing.


@dataclass(kw_only=True)
class History:
    """When training began, when a node that ran a stage was lost, and how many nodes there were. Unix seconds."""

    begun: float = 0.0
    restart_seconds: float = 133.0  # until a tariff says otherwise: the defaults of ``prices.Restart``
    checkpoint_seconds: float = 600.0  # from one checkpoint to the next
    lost_at: list[float] = field(default_factory=list)
    counted: list[float] = field(default_factory=list)  # when the number of nodes changed; Invariant: in order of time
    counts: list[int] = field(default_factory=list)  # what it changed to; Invariant: as many as ``counted``

    def begin(self, at: float) -> None:
        self.begun = at

    def lost(self, at: float) -> None:
        self.lost_at.append(at)

    def nodes(self, at: float, count: int) -> None:
        self.counted.append(at)
        self.counts.append(count)

    def node_count(self, at: float) -> int:
        index = bisect_right(self.counted, at) - 1
        return self.counts[index] if index >= 0 else 0


def with_checkpoints(history: History, work: float, stages: int) -> float:
    """Seconds for ``work`` seconds of undisturbed training, with the lost nodes and node counts that this run had.

    Every lost node that ran a stage throws training back to the last checkpoint and takes a restart; with fewer nodes
    than stages it stands still. Writing checkpoints is free, and after the last event nothing more goes wrong: both
    favour checkpoints.
    """
    changes = sorted({t for t in (*history.lost_at, *history.counted) if t > history.begun})
    lost_at = set(history.lost_at)
    # done: seconds of work that stay; ready: until then it restarts
    now, done, ready = history.begun, 0.0, history.begun
    for change in changes:
        if history.node_count(now) >= stages:
            trained = max(0.0, change - max(now, ready))
            if done + trained >= work:
                return max(now, ready) + (work - done) - history.begun
            done += trained
        now = change
        if change in lost_at:
            done -= done % history.checkpoint_seconds
            ready = change + history.restart_seconds
    return max(now, ready) + (work - done) - history.begun

"""Whose fault it is when something raises on a node: that node's, or the job's (rule 16)."""

# One machine may lack a module, a GPU or room on its disk; that ends this node and nothing else. What raises on two
# machines alike is the job's fault. Three kinds of evidence, each about *work*, whoever did it:
#
# - *Raised.* The same instruction of the same step, on layers that overlap, raised on two machines. So did the building
#   of the same layer, which belongs to no step.
# - *The start.* The job's start raised on two machines, and has worked on none. A node that is available shows that the
#   job does start; from then on whoever cannot start it is at fault itself.
# - *Deaths.* A process that the user's code ends at once leaves no word: it looks as if its machine had been taken.
#   Machines are taken at any moment, also several at the same instruction, and that must not fail a run. So it takes
#   ``DEATHS`` lost owners of the same layers in the same step, with no commit of that step in between, also across
#   rollbacks; and no single machine counts for more than half of them. A node that says that it leaves is none of them.
#
# Where there is no other machine its own failures are enough: one, where the run waits for one node only, else two.
#
# A machine may run several processes one after the other: a supervisor starts what has ended again. The node's name
# tells the machine. Where the node made its name from host and process id, the host alone does.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

# Of owners of the same layers, in the same step. High, since to be wrong ends a healthy run, and a market rarely takes
# so many owners of one stage within one step. Not higher: each of them costs a takeover, or a rollback.
DEATHS = 8
# Pieces of work, and machines, that are kept on record: the newest. In a run of months many machines come and go.
REMEMBERED = 64
TEXT = 500  # characters of a reason: users' exceptions may hold whole tensors


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work, told apart from all others whoever does it. ``step`` is None for what belongs to no step."""

    what: str  # such as "F3", "apply", "build"; empty: whatever an owner of the layers does in the step
    step: int | None
    first_layer: int
    end_layer: int  # exclusive

    def is_same(self, other: "Work") -> bool:
        """The cut into stages may be another after a rollback; the layers are not."""
        overlaps = self.first_layer < other.end_layer and other.first_layer < self.end_layer
        return (self.what, self.step) == (other.what, other.step) and overlaps

    def __str__(self) -> str:
        layers = f"layer {self.first_layer}"
        if self.end_layer > self.first_layer + 1:
            layers = f"layers {self.first_layer} to {self.end_layer - 1}"
        return (f"{self.what} of {layers}" if self.what else layers) + (
            f" in step {self.step}" if self.step is not None else ""
        )


START = Work("start", None, 0, 1)  # of no layer in truth: the first one, so that all starts are the same work


@dataclass(frozen=True, slots=True)
class Failures:
    """What has gone wrong so far, newest last. Bounded by ``REMEMBERED``."""

    # Work -> how often on each machine. Invariant: nothing here of a step that is committed.
    by_work: Mapping[Work, Mapping[str, int]] = field(default_factory=dict)
    # Machine -> how often it ended before it could take part; forgotten once it can.
    starts: Mapping[str, int] = field(default_factory=dict)
    newest_start: str = ""  # what was said by the newest of those; empty once a node is available


def machine_of(node: str, pid: int) -> str:
    """Who it is that starts again."""
    return node.removesuffix(f"-{pid}") or node


def noted(failures: Failures, work: Work, machine: str) -> Failures:
    """With one more failure of this machine at the work."""
    known = next((w for w in failures.by_work if w.is_same(work)), work)
    counts = dict(failures.by_work.get(known, {}))
    counts[machine] = counts.get(machine, 0) + 1
    by_work = {**{w: c for w, c in failures.by_work.items() if w != known}, known: _newest(counts)}
    return replace(failures, by_work=_newest(by_work))


def died(failures: Failures, works: Iterable[Work], machine: str) -> Failures:
    """With one more death of this machine, which did all of these; it counts once for each that is on record."""
    # A node that owned two stages counts at both. Where both overlap one work on record, from a cut before, it counts
    # there once.
    counted: list[Work] = []
    for work in works:
        if not any(work.is_same(other) for other in counted):
            counted.append(next((w for w in failures.by_work if w.is_same(work)), work))
            failures = noted(failures, work, machine)
    return failures


def start_failed(failures: Failures, machine: str) -> tuple[Failures, int]:
    """With one more start of this machine that came to nothing, and how many of them there are now."""
    count = failures.starts.get(machine, 0) + 1
    starts = {**{m: n for m, n in failures.starts.items() if m != machine}, machine: count}
    return replace(failures, starts=_newest(starts)), count


def started(failures: Failures, machine: str) -> Failures:
    """The job has started there: the start is not the job's fault."""
    by_work = {w: c for w, c in failures.by_work.items() if w != START}
    starts = {m: n for m, n in failures.starts.items() if m != machine}
    return replace(failures, by_work=by_work, starts=starts, newest_start="")


def committed(failures: Failures, step: int) -> Failures:
    """The step has been committed: what went wrong in it was not its work's fault, and every layer can be built."""
    kept = {w: c for w, c in failures.by_work.items() if w.step is not None and w.step > step}
    return failures if len(kept) == len(failures.by_work) else replace(failures, by_work=kept)


def is_the_jobs(failures: Failures, work: Work, enough: int) -> bool:
    """Whether the evidence on this work is against the job.

    ``enough``: how many failures on one machine are, since there is no other one; 0: none are.
    """
    counts = machines_at(failures, work)
    if work.what:
        return len(counts) >= 2 or 0 < enough <= sum(counts.values())
    return sum(counts.values() if enough else (min(n, DEATHS // 2) for n in counts.values())) >= DEATHS


def machines_at(failures: Failures, work: Work) -> Mapping[str, int]:
    """How often each machine has failed at the work."""
    return next((c for w, c in failures.by_work.items() if w.is_same(work)), {})


def is_told(count: int) -> bool:
    """Whether the event log has to hear of a machine's failure to start again: ever more seldom."""
    return count & (count - 1) == 0


def _newest(items: Mapping[K, V]) -> Mapping[K, V]:
    return dict(list(items.items())[-REMEMBERED:])

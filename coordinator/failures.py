"""Whose fault it is when something raises on a node: that node's, or the job's (rule 16)."""

# One machine may lack a module, a GPU or room on its disk; that ends this node and nothing else. What raises on two
# machines alike is the job's fault. Three kinds of evidence, each about *work*, whoever did it:
#
# - *Raised.* The same instruction of the same step, on layers that overlap, raised on two machines. So did the building
#   of the same layer, which belongs to no step.
# - *The start.* The job's start raised on two machines, and has worked on none. A node that is available shows that the
#   job does start; from then on whoever cannot start it is at fault itself.
# - *Deaths.* A process that the user's code ends at once leaves no word: it looks as if its machine had been taken.
#   Machines are taken at any moment, also many at once, and that must not fail a run. So it takes ``DEATHS`` lost
#   owners of the same layers in the same step and pipeline, one after the other: each had the work from the one before,
#   or after a rollback did it anew, and was alive then. No commit of that step lies in between, and no single machine
#   counts for more than half of them. A node that says that it leaves is none of them.
#
#       power is back    n0 to n8, owners of one stage, were started again. n0 is found lost first, and n1 is to run its
#                        pipeline; n1 is found lost, and n2 is to run both. But n1 had ended before: one death each
#       a layer exits    n0 ends at it. n1 resumes the pipeline, and ends at it. n2 resumes: the third death
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

# High, since to be wrong ends a healthy run, and a market rarely takes so many heirs of one pipeline within one step.
# Not higher: each of them costs a takeover, or a rollback.
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
    pipeline: int | None = None  # None: of any

    def is_same(self, other: "Work") -> bool:
        """The cut into stages may be another after a rollback; the layers are not."""
        overlaps = self.first_layer < other.end_layer and other.first_layer < self.end_layer
        same = (self.what, self.step, self.pipeline) == (other.what, other.step, other.pipeline)
        return same and overlaps

    def __str__(self) -> str:
        layers = f"layer {self.first_layer}"
        if self.end_layer > self.first_layer + 1:
            layers = f"layers {self.first_layer} to {self.end_layer - 1}"
        return (f"{self.what} of {layers}" if self.what else layers) + (
            f" in step {self.step}" if self.step is not None else ""
        )


START = Work("start", None, 0, 1)  # of no layer in truth: the first one, so that all starts are the same work


@dataclass(frozen=True, slots=True)
class Deaths:
    """Of owners that had the same work, one after the other."""

    by_machine: Mapping[str, int] = field(default_factory=dict)
    at: float = float("-inf")  # when the newest one was found lost

    @property
    def count(self) -> int:
        return sum(self.by_machine.values())


@dataclass(frozen=True, slots=True)
class Failures:
    """What has gone wrong so far, newest last. Bounded by ``REMEMBERED``, and by the duties of one step."""

    # Work -> how often on each machine. Invariant: nothing here of a step that is committed; nor in ``deaths``.
    by_work: Mapping[Work, Mapping[str, int]] = field(default_factory=dict)
    deaths: Mapping[Work, Deaths] = field(default_factory=dict)
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


def died(failures: Failures, works: Iterable[Work], machine: str, alive_at: float, now: float) -> Failures:
    """With one more death of this machine at each of these that it had while it was alive.

    ``alive_at``: when it was known to be, last. From the death before until then it had not done what that one had.
    """
    # A node that owned two stages counts at both. Where both overlap one work on record, from a cut before, it counts
    # there once: the first of them was found a moment ago.
    deaths = dict(failures.deaths)
    for work in works:
        known = next((w for w in deaths if w.is_same(work)), work)
        before = deaths.pop(known, Deaths())
        counts = {**before.by_machine, machine: before.by_machine.get(machine, 0) + 1}
        deaths[known] = Deaths(_newest(counts), now) if alive_at > before.at else before
    return replace(failures, deaths=deaths)


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
    if not (failures.by_work or failures.deaths):
        return failures
    by_work = {w: c for w, c in failures.by_work.items() if w.step is not None and w.step > step}
    deaths = {w: d for w, d in failures.deaths.items() if w.step is not None and w.step > step}
    return replace(failures, by_work=by_work, deaths=deaths)


def is_the_jobs(failures: Failures, work: Work, enough: int) -> bool:
    """Whether the evidence on this work is against the job.

    ``enough``: how many failures on one machine are, since there is no other one; 0: none are.
    """
    counts = machines_at(failures, work)
    return len(counts) >= 2 or 0 < enough <= sum(counts.values())


def are_the_jobs(deaths: Deaths, alone: bool) -> bool:
    """Whether so many deaths are evidence against the job. ``alone``: there is no other machine."""
    counts = deaths.by_machine.values()
    return sum(counts if alone else (min(n, DEATHS // 2) for n in counts)) >= DEATHS


def machines_at(failures: Failures, work: Work) -> Mapping[str, int]:
    """How often each machine has failed at the work."""
    return next((c for w, c in failures.by_work.items() if w.is_same(work)), {})


def is_told(count: int) -> bool:
    """Whether the event log has to hear of a machine's failure to start again: ever more seldom."""
    return count & (count - 1) == 0


def _newest(items: Mapping[K, V]) -> Mapping[K, V]:
    return dict(list(items.items())[-REMEMBERED:])

"""How many copies of every stage ``"auto"`` chooses: so many that few bulks of lost nodes take all of one. Pure."""

# Nodes are lost in bulk: of 167 that went in a day of AWS spot 77 % went within a second of another one. A bulk of b of
# N nodes, any of them as likely as any other, takes all k copies of a stage with the probability
#
#     b (b - 1) .. (b - k + 1) / (N (N - 1) .. (N - k + 1))
#
# and those of some stage of S with S times that at most. That is a rollback, one for a bulk. Bulks are expected to come
# as often and as large as they did so far, and one more of them: by a node larger than any. What a few hours have shown
# rules out nothing that is a little larger, and without that one the choice would follow the first bad bulk.
#
# A bulk of all nodes takes all copies, however many there are. It is told of, and does not count.
#
# A trace of the same market tells of bulks before the first one comes. Of those the share of the machines counts, since
# the run may have more nodes than the trace had machines, or fewer.
#
# Where zones are known a stage's copies are in different ones, and bulks take fewer of them: this is an upper bound.

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

from culm.coordinator.settling import BULK_SECONDS, HOUR
from culm.coordinator.state import BulksBefore, State

FEWEST = 2
# Rollbacks that may be expected over the rest of the run. One costs half of what lies between two checkpoints, for all
# nodes; a copy costs each node a stage's state and its reduced gradients in every step.
MOST_ROLLBACKS = 0.5
LEAST_HOURS = 1.0  # a rate from less than that is luck


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What a run has seen of lost nodes, and what it still has before it."""

    bulks: Sequence[int]  # how many nodes each took; a node that went alone is a bulk of 1
    hours: float  # in which these were seen
    nodes: int  # there are now
    stages: int
    hours_left: float  # of the run
    from_trace: int = 0  # how many of the bulks a trace told of


def bulks(lost_at: Sequence[float], within: float) -> tuple[int, ...]:
    """The sizes of bulks. ``lost_at``: when each node was lost, ascending; ``within``: seconds from one to the next.

    Nodes that one decision declares lost have one moment, and so are one bulk.
    """
    sizes: list[int] = []
    for i, at in enumerate(lost_at):
        if i and at - lost_at[i - 1] <= within:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return tuple(sizes)


def risk(bulk: int, copies: int, nodes: int, stages: int) -> float:
    """The probability that a bulk takes all copies of some stage: an upper bound."""
    if bulk >= nodes:
        return 1.0
    if bulk < copies:
        return 0.0
    return min(1.0, stages * prod((bulk - i) / (nodes - i) for i in range(copies)))


def expected_rollbacks(seen: Losses, copies: int) -> float:
    """Over the rest of the run, but for those by bulks of all nodes."""
    some = [bulk for bulk in seen.bulks if bulk < seen.nodes]
    if not some:
        return 0.0
    larger = min(max(some) + 1, seen.nodes - 1)
    in_those_hours = sum(risk(bulk, copies, seen.nodes, seen.stages) for bulk in [*some, larger])
    return in_those_hours * seen.hours_left / max(seen.hours, LEAST_HOURS)


def choose(seen: Losses, present: int = 0, most: int = 0, bound: float = MOST_ROLLBACKS) -> tuple[int, str]:
    """The fewest copies, the owner among them, with which so few rollbacks are expected; and why.

    ``present``: how many there are; they become fewer only where half the bound is kept with fewer, or the number would
    go to and fro. ``most``: as many as there is memory for; 0: as many as there are nodes.
    """
    most = max(1, min(most or seen.nodes, seen.nodes))
    fewest = min(FEWEST, most)
    for copies in range(fewest, most):
        if expected_rollbacks(seen, copies) <= (bound / 2 if copies < present else bound):
            return copies, _in_words(seen, copies, fewest, bound)
    return most, _in_words(seen, most, fewest, bound)


def _in_words(seen: Losses, copies: int, fewest: int, bound: float) -> str:
    if not seen.bulks:
        return f"{copies} copies of every stage: no node has been lost so far"
    largest = max(seen.bulks)
    found = expected_rollbacks(seen, copies)
    told = f" (of these {seen.from_trace} as in the given trace)" if seen.from_trace else ""
    words = (
        f"{copies} copies of every stage: up to {largest} of {seen.nodes} nodes were lost at once, in "
        f"{len(seen.bulks)} losses in {seen.hours:.1f} h{told}; so all copies of a stage are expected to go "
        f"{found:.2g} times in the {seen.hours_left:.1f} h that are left"
    )
    if copies > fewest:
        words += f", and with {copies - 1} copies {expected_rollbacks(seen, copies - 1):.2g} times"
    if found > bound:
        words += f": that is more than {bound:g}, but no more copies have a place"
    whole = sum(bulk >= seen.nodes for bulk in seen.bulks)
    if whole:
        words += f"; {whole} losses took as many nodes as there are, against which no number of copies helps"
    return words


def at_the_start(state: State, nodes: int, now: float) -> tuple[State, str]:
    """The state before the first plan, with as many copies as the given trace asks for, and why."""
    # Nobody knows yet how long a step takes, and so the run. It is taken to last as long as the trace.
    before = state.settings.bulks_before
    if not state.settings.chooses_copies or not before.shares:
        return state, ""
    return _with_more(state, _seen(state, nodes, state.settings.stages, max(before.hours, LEAST_HOURS), now))


def after_losses(state: State, nodes: int, now: float) -> tuple[State, str]:
    """The state after nodes were lost, with more copies if that asks for them, and why; ``nodes``: before that.

    Copies never become fewer again: what has taken many nodes at once may come back, and a successor, which keeps their
    number, has not seen it.
    """
    if not state.settings.chooses_copies or state.plan is None:
        return state, ""
    steps_left = state.settings.steps - state.committed
    left = steps_left * median(state.watch.recent) / HOUR if state.watch.recent else LEAST_HOURS
    return _with_more(state, _seen(state, nodes, len(state.plan.stages), left, now))


def _seen(state: State, nodes: int, stages: int, hours_left: float, now: float) -> Losses:
    seen = Losses(
        bulks=bulks(state.lost_at, BULK_SECONDS),
        hours=(now - state.lost_at[0]) / HOUR if state.lost_at else 0.0,
        nodes=nodes,
        stages=stages,
        hours_left=hours_left,
    )
    return and_before(seen, state.settings.bulks_before)


def and_before(seen: Losses, before: BulksBefore) -> Losses:
    """What a run has seen, and what a trace of the same market tells as if the run had seen it."""
    as_seen = tuple(max(1, round(share * seen.nodes)) for share in before.shares)
    return replace(seen, bulks=(*as_seen, *seen.bulks), hours=before.hours + seen.hours, from_trace=len(as_seen))


def _with_more(state: State, seen: Losses) -> tuple[State, str]:
    copies, why = choose(seen)
    if copies <= state.copies_wanted:
        return state, ""
    return replace(state, copies=copies), why

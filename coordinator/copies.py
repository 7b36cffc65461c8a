"""How many copies of every stage ``"auto"`` chooses: what copies cost against what rollbacks cost. Pure."""

# Both are counted in seconds of the rest of the run, and the number with the least sum is chosen:
#
#     copies       what every step is longer by, since more gradients are sent (``copy_costs``), and seeding them once
#     rollbacks    half of what lies between two checkpoints, and the restart, each time that one is expected
#
# The owners of a stage are each other's copies. So a stage with as many owners as there are to be copies costs nothing
# more, and is at no more risk.
#
# Nodes are lost in bulk: of 167 that went in a day of AWS spot 77 % went within a second of another one. A bulk of b of
# N nodes, any of them as likely as any other, takes all k copies of a stage with the probability
#
#     b (b - 1) .. (b - k + 1) / (N (N - 1) .. (N - k + 1))
#
# and those of some stage with the sum over all stages at most. That is a rollback, one for a bulk. Nodes that go one
# after another, before a copy of what the first one held is whole again, take as much as if they went at once: so what
# is lost within ``Costs.exposed`` of a bulk's first node is part of it. Later ones are not, however close together all
# of them go: the first one's copy is whole by then.
#
# Bulks are expected to come as often and as large as they did so far, and one more of them: by a node larger than any.
# What a few hours have shown rules out nothing that is a little larger, and without that one the choice would follow
# the first bad bulk.
#
# A bulk of all nodes takes all copies, however many there are. It is told of, and does not count.
#
# A trace of the same market tells of bulks before the first one comes. Of those the share of the machines counts, since
# the run may have more nodes than the trace had machines, or fewer.
#
# Where zones are known a stage's copies are in different ones, and bulks take fewer of them: this is an upper bound.
#
# The number falls as well: another shape may make copies dearer, and bulks become rarer. But a leader that has just
# taken over knows none of the bulks before it, so it lets the number fall only after an hour of its own. Nor does it
# fall within a bulk, whose heirs carry more than their part until the shape follows: copies seem dear meanwhile.

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from culm.coordinator.copy_costs import FEWEST, Costs, costs_of, most_copies
from culm.coordinator.settling import BULK_SECONDS, HOUR
from culm.coordinator.state import BulksBefore, State
from culm.pipeline.plan import Stages

LEAST_HOURS = 1.0  # a rate from less than that is luck
# Of the rest of the run: what differs by less costs the same, and of such numbers the present one stays.
WORTHWHILE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What a run has seen of lost nodes, and what it still has before it."""

    bulks: Sequence[int]  # how many nodes each took; a node that went alone is a bulk of 1
    hours: float  # in which these were seen
    nodes: int  # there are now
    owners: Sequence[int]  # of each stage
    hours_left: float  # of the run
    within: float = BULK_SECONDS  # seconds: nodes lost so close together are one bulk
    from_trace: int = 0  # how many of the bulks a trace told of


def bulks(lost_at: Sequence[float], within: float, exposed: float = 0.0) -> tuple[int, ...]:
    """The sizes of bulks. ``lost_at``: when each node was lost, ascending.

    A node is of the bulk of the one before it if it goes within so many seconds of that one, or within ``exposed``
    seconds after the bulk's first one. Nodes that one decision declares lost have one moment, and so are one bulk.
    """
    sizes: list[int] = []
    began = 0.0
    for i, at in enumerate(lost_at):
        if i and (at - lost_at[i - 1] <= within or at - began <= exposed):
            sizes[-1] += 1
        else:
            sizes.append(1)
            began = at
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
    some = Counter(bulk for bulk in seen.bulks if bulk < seen.nodes)
    if not some:
        return 0.0
    some[min(max(some) + 1, seen.nodes - 1)] += 1
    held = Counter(max(copies, owners) for owners in seen.owners)  # how many stages have so many copies
    in_those_hours = sum(
        times * min(1.0, sum(risk(bulk, count, seen.nodes, stages) for count, stages in held.items()))
        for bulk, times in some.items()
    )
    return in_those_hours * seen.hours_left / max(seen.hours, LEAST_HOURS)


def choose(seen: Losses, costs: Costs, present: int = 0, most: int = 0) -> tuple[int, str]:
    """The copies, the owner among them, that cost least with the rollbacks that they leave; and why.

    ``present``: how many there are. ``most``: as many as there is memory for; 0: as many as there are nodes.
    """
    most = max(1, min(most or seen.nodes, seen.nodes))
    fewest = min(FEWEST, most)
    present = min(max(present, fewest), most)
    left = seen.hours_left * HOUR
    prices = {present: _price(seen, costs, present, present)}
    best = fewest
    for copies in range(fewest, most + 1):
        price = prices[copies] = _price(seen, costs, copies, present)
        if price.total < prices[best].total:
            best = copies
        # More copies cost no less, and save no more than the rollbacks that are left.
        if price.for_copies >= prices[best].total or price.for_rollbacks <= WORTHWHILE * left:
            break
    as_good = [n for n, price in prices.items() if price.total <= prices[best].total + WORTHWHILE * left]
    # Of those that cost the same the most: owners that are copies now may be fewer under the next shape.
    best = present if present in as_good else max(as_good)
    return best, _in_words(seen, costs, prices, best, present)


@dataclass(frozen=True, slots=True)
class _Price:
    """Of a number of copies: seconds of the rest of the run."""

    for_copies: float
    for_rollbacks: float

    @property
    def total(self) -> float:
        return self.for_copies + self.for_rollbacks


def _price(seen: Losses, costs: Costs, copies: int, present: int) -> _Price:
    every_step = seen.hours_left * HOUR * costs.of_step(copies) / costs.step if costs.step else 0.0
    seeding = max(0, copies - present) * costs.to_seed
    return _Price(every_step + seeding, expected_rollbacks(seen, copies) * costs.rollback)


def _in_words(seen: Losses, costs: Costs, prices: Mapping[int, _Price], copies: int, present: int) -> str:
    if not seen.bulks:
        return f"{copies} copies of every stage: no node has been lost so far"
    found = prices[copies]
    as_told = f" (of these {seen.from_trace} as in the given trace)" if seen.from_trace else ""
    at_once = "at once" if seen.within <= BULK_SECONDS else f"within {seen.within:.0f} s"
    words = (
        f"{copies} copies of every stage: up to {max(seen.bulks)} of {seen.nodes} nodes were lost {at_once}, in "
        f"{len(seen.bulks)} losses in {seen.hours:.1f} h{as_told}; in the {seen.hours_left:.1f} h that are left they "
        f"cost {found.for_copies:.0f} s, and {found.for_rollbacks:.0f} s of rollbacks are to be expected, each of "
        f"{costs.rollback:.0f} s"
    )
    others = sorted({present, copies - 1, copies + 1} & prices.keys() - {copies})
    if others:
        beside = ((n, prices[n]) for n in others)
        told = [f"with {n} copies {price.for_copies:.0f} s and {price.for_rollbacks:.0f} s" for n, price in beside]
        words += f"; {', '.join(told)}"
    if costs.taken:
        words += f"; {costs.taken}"
    whole = sum(bulk >= seen.nodes for bulk in seen.bulks)
    if whole:
        words += f"; {whole} losses took as many nodes as there are, against which no number of copies helps"
    return words


def at_the_start(state: State, stages: Stages, nodes: int, now: float) -> tuple[State, str]:
    """The state before an era's first plan, with as many copies as the given trace asks for, and why.

    ``stages``: the placement with as many as there were to be so far.
    """
    # Nobody may know yet how long a step takes, and so the run. It is taken to last as long as the trace.
    before = state.settings.bulks_before
    if not state.settings.chooses_copies or not before.shares:
        return state, ""
    return _looked(state, stages, nodes, max(before.hours, LEAST_HOURS), now)


def after_losses(state: State, stages: Stages, nodes: int, now: float) -> tuple[State, str]:
    """The state after nodes were lost, with another number of copies if that pays, and why; ``nodes``: before that."""
    if not state.settings.chooses_copies:
        return state, ""
    return _looked(state, stages, nodes, LEAST_HOURS, now)


def _looked(state: State, stages: Stages, nodes: int, hours: float, now: float) -> tuple[State, str]:
    """``hours``: that the rest of the run is taken to last as long as no step has been timed."""
    costs = costs_of(state, stages, hours)
    steps_left = state.steps - state.committed
    seen = Losses(
        bulks=bulks(state.lost_at, BULK_SECONDS, costs.exposed),
        within=max(BULK_SECONDS, costs.exposed),
        hours=(now - state.lost_at[0]) / HOUR if state.lost_at else 0.0,
        nodes=nodes,
        owners=[len(stage.distinct_owners) for stage in stages],
        hours_left=max(0, steps_left) * costs.step / HOUR,
    )
    begins_bulk = bool(seen.bulks) and seen.bulks[-1] == nodes - len(state.nodes)
    may_fall = begins_bulk and seen.hours >= LEAST_HOURS
    seen = and_before(seen, state.settings.bulks_before)
    chosen, why = choose(seen, costs, state.copies_wanted, most_copies(state))
    if chosen == state.copies_wanted or (chosen < state.copies_wanted and not may_fall):
        return state, ""
    return replace(state, copies=chosen), why


def and_before(seen: Losses, before: BulksBefore) -> Losses:
    """What a run has seen, and what a trace of the same market tells as if the run had seen it."""
    as_seen = tuple(max(1, round(share * seen.nodes)) for share in before.shares)
    return replace(seen, bulks=(*as_seen, *seen.bulks), hours=before.hours + seen.hours, from_trace=len(as_seen))

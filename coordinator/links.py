"""Links between neighbours that stay broken while both ends attend the coordinator: whom to do without."""

# Nodes repeat their report for as long as a stream stays broken, and fall silent when it works again. A link that is
# broken for longer than the patience for links holds up every commit: one of its ends has to go, though it lives. Who
# goes is decided by the first of these that tells the two apart (``judge``):
#
#     an end holds the only copy of a stage      the other one goes; if both do, the link is waited for six times longer
#     more nodes do not reach one of them        that one: several broken links at one node are most likely its own
#     less depends on one of them                that one (``price``)
#     neither                                    the second in natural order: two coordinators choose alike
#
# The end that had to go joins anew, and would be placed beside the same peer at once. So it is *parted* from it: given
# no work until the quarantine is over, or the peer has gone.
#
# A commit shows that the nodes it needed have reached each other within the step, whatever was reported (``carried``).
# So a link that breaks now and then, while steps commit, costs nobody a node.

from collections.abc import Mapping
from dataclasses import dataclass, replace

from culm.coordinator.placement import promote
from culm.coordinator.reports import PeerLost
from culm.coordinator.state import Missed, Parted, Settings, State
from culm.pipeline.plan import Plan
from culm.pipeline.text import natural_order

# Both in units of the patience for links. For so long an end that had to go is given no work: sooner it would be placed
# beside the same peer, and cost another lost node.
QUARANTINE = 12
# For so long a link between two only copies may take to mend: to go on without either of them is to roll back.
ONLY_COPIES = 6


def report(state: State, report: PeerLost, now: float) -> State:
    """Puts a neighbour's report on record: the first since the link last worked counts from now."""
    before = state.evidence.get(report.suspect, {}).get(report.node)
    first = before.first if before is not None and _stands(state, before, now) else now
    reports = {**state.evidence.get(report.suspect, {}), report.node: Missed(first, now)}
    return replace(state, evidence={**state.evidence, report.suspect: reports})


def carried(state: State, plan: Plan, now: float) -> State:
    """A step was committed under the plan: whatever was reported, its required nodes have reached each other."""
    required = {n for stage in plan.stages for n in stage.required()}
    evidence = {
        suspect: {
            reporter: replace(said, first=now) if {suspect, reporter} <= required else said
            for reporter, said in reports.items()
        }
        for suspect, reports in state.evidence.items()
    }
    return replace(state, evidence=evidence)


def _stands(state: State, report: Missed, now: float) -> bool:
    """Whether the report is still being repeated."""
    # Half the patience for links is several attempts to connect: whoever is silent for longer has got through.
    return now - report.last <= state.settings.patience.link / 2


def broken(state: State, now: float) -> Mapping[tuple[str, str], float]:
    """The broken links between attached nodes, by (one end, other end) in natural order -> for how long reports say so.

    Counted up to the newest report: the silence after it may be a link that works again.
    """
    links: dict[tuple[str, str], float] = {}
    for suspect, reports in state.evidence.items():
        for reporter, said in reports.items():
            ends = [state.nodes.get(n) for n in (suspect, reporter)]
            if _stands(state, said, now) and all(n is not None and n.attached_since is not None for n in ends):
                one, other = natural_order({suspect, reporter})
                links[one, other] = max(said.last - said.first, links.get((one, other), 0.0))
    return links


@dataclass(frozen=True, slots=True)
class Verdict:
    """On a link that is broken for too long. ``gone`` is empty if neither end can be done without."""

    gone: str
    stays: str
    why: str


def judge(state: State, now: float) -> Verdict | None:
    """What to do about the worst link that is broken for too long: who more nodes miss goes, else who costs less."""
    links = _that_matter(state, broken(state, now))
    late = [ends for ends, seconds in links.items() if seconds > state.settings.patience.link]
    if not late:
        return None
    missed = {n: sum(n in ends for ends in links) for ends in links for n in ends}
    prices = {n: price(state, n) for ends in late for n in ends}
    patience = ONLY_COPIES * state.settings.patience.link
    waiting = [ends for ends in late if all(prices[n][0] for n in ends) and links[ends] <= patience]
    due = [ends for ends in late if ends not in waiting]
    one, other = max(due or waiting, key=lambda ends: (max(missed[n] for n in ends), links[ends]))
    spared = [n for n in (one, other) if prices[n][0]]
    if not due:
        why = f"{one} and {other} do not reach each other, and each holds the only copy of a stage"
        return Verdict("", "", f"{why}: waiting for the link between them")
    reached = f"{one} and {other} have not reached each other for {links[one, other]:.1f} s, so one of them has to go"
    if len(spared) == 1:
        gone = other if spared == [one] else one
        because = f"{spared[0]} holds the only copy of a stage"
    elif missed[one] != missed[other]:
        gone = max(one, other, key=lambda n: missed[n])
        because = f"{missed[gone]} nodes do not reach {gone}"
    elif prices[one] != prices[other]:
        gone = min(one, other, key=lambda n: prices[n])
        because = f"less depends on {gone}"
    else:
        gone, because = other, f"as much depends on {one} as on {other}"
    return Verdict(gone, other if gone == one else one, f"{reached}, and {because}")


def _that_matter(state: State, links: Mapping[tuple[str, str], float]) -> Mapping[tuple[str, str], float]:
    """While no step runs a link holds up only seeding: who cannot be seeded goes if another node can take its place.

    No copy goes for it then, and nobody who is the only one to hold a stage: the weights are on the nodes alone.
    """
    if not state.rests or state.plan is None:
        return links
    late = {frozenset(ends) for ends in _replaceable(state, state.plan) if not price(state, ends[1])[0]}
    return {ends: seconds for ends, seconds in links.items() if frozenset(ends) in late}


def _replaceable(state: State, plan: Plan) -> list[tuple[str, str]]:
    """(owner, standby that it is to seed) of stages without a hot standby, where another node could be seeded."""
    present = [n for n in state.nodes.values() if n.available and n.attached_since is not None and not n.draining]
    free = {n.node for n in present} - set(state.parted)
    return [
        (owner, standby.node)
        for stage in plan.stages
        for owner in stage.distinct_owners
        for standby in stage.standbys
        if stage.hot_standby() is None and free.difference(stage.holders())
    ]


def unseeded(state: State, now: float) -> tuple[str, str] | None:
    """While no step runs: (owner, standby) of which neither may go, though the one cannot seed the other.

    Both hold a stage alone, so none of the two is lost for their link: the standby's place is another node's.
    """
    if not state.rests or state.plan is None:
        return None
    links = broken(state, now)
    for owner, standby in _replaceable(state, state.plan):
        one, other = natural_order({owner, standby})
        late = links.get((one, other), 0.0) > state.settings.patience.link
        if late and price(state, standby)[0] and standby not in state.parted:
            return owner, standby
    return None


def price(state: State, node: str) -> tuple[int, int, int, int]:
    """The cost of losing the node, the worst first: a stage's last copy, stages to move, standbys to seed, seedings."""
    stages = state.plan.stages if state.plan is not None else ()
    hot = sum(b.node == node and b.hot for stage in stages for b in stage.standbys)
    seeding = sum(b.node == node and not b.hot for stage in stages for b in stage.standbys)
    return int(promote(stages, [node])[0] is None), sum(node in s.owners for s in stages), hot, seeding


def part(state: State, node: str, peer: str, now: float) -> State:
    """Notes that the node is not to be the peer's neighbour again at once, should it join anew."""
    return replace(state, parted={**state.parted, node: parted(peer, state.settings, now)})


def parted(peer: str, settings: Settings, now: float) -> Parted:
    """From now on, for the whole of the quarantine."""
    return Parted(peer, now + QUARANTINE * settings.patience.link)


def forgive(state: State, now: float) -> State:
    """Ends what has lasted long enough, or whose other end has gone."""
    kept = {n: p for n, p in state.parted.items() if now < p.until and p.peer in state.nodes}
    return state if kept == state.parted else replace(state, parted=kept)

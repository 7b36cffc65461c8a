"""When an era begins: once enough nodes are there, the model is placed on them from the era's origin."""

# An era ends by ``rolling_back.roll_back``, mostly since a stage has no copy left. That decision names what the next
# one begins from, and leaves the state without a plan, in WAITING. Here the next one begins: from the first report or
# tick at which enough nodes are there, with a plan that gives every holder the origin's state.
#
#     the very first era      waits for as many nodes as the job asks for; a machine on which the job does not start is
#                             not waited for
#     every later one         begins with what is left: two nodes, or one where nobody is to stand by
#
# A run that failed has no plan once its nodes are gone, and keeps its step for whoever looks at it. A coordinator that
# starts again tries again. If no node comes with that step, nobody can give it to anybody: the run rolls back first.
#
# An era that begins at the last step trains nothing: its holders read the final weights again, and the run is done.
#
# Never before the leader knows which checkpoints there are (``rolling_back``).
#
# Never while a new leader hears from the nodes. Holders of a plan that it does not know may still attach, and an era
# that begins beside theirs throws away what they have trained (rules 8 and 15).

from collections.abc import Sequence
from dataclasses import replace

from culm.coordinator import cutting, draining, limits, rolling_back, takeover, waiting
from culm.coordinator.commands import Persist, Publish, Record
from culm.coordinator.copies import at_the_start
from culm.coordinator.crossing import in_words
from culm.coordinator.decisions import (
    Decision,
    budget_of,
    counting_of,
    done,
    prices_of,
    reason_of,
    sizes_of,
    with_plan,
    zones_of,
)
from culm.coordinator.placement import place
from culm.coordinator.state import Phase, Search, State
from culm.coordinator.zones import Zones
from culm.pipeline.counting import counted
from culm.pipeline.money import kinds
from culm.pipeline.plan import Stages


def begin_era(state: State, now: float) -> Decision:
    """Places the model from its beginning once enough nodes are there."""
    if state.phase is not Phase.WAITING or state.plan is not None or takeover.recovering(state):
        return state, ()
    if any(node.available for node in state.nodes.values()):
        state, searching = rolling_back.search_first(state)
        if state.storage.search is not Search.OVER:
            return state, searching
        if state.resumed and not state.origin.folder:
            return rolling_back.roll_back(state, "the run has not found the checkpoint that it was resumed from")
    if state.committed != state.origin.step:
        lost = f"no node is left that holds step {state.committed}, which the run had come to when it failed"
        return rolling_back.roll_back(state, lost)
    if why := limits.why_not_begun(state):
        return waiting.wait(state, waiting.PRICES, why)
    settings = state.settings
    # Who is to go has nothing left to hand over: it held its part until the era ended.
    state, gone = draining.let_go(state, sorted(n.node for n in state.nodes.values() if n.draining))
    nodes = [n.node for n in state.nodes.values() if n.available]
    needed = settings.nodes or (1 if settings.whole_pipelines else settings.stages)
    least = min(needed, 2 if settings.redundancy and settings.stages > 1 else 1)
    # After a rollback what is left goes on, but not without a standby while there may be one. Machines on which the
    # job does not start are not waited for.
    needed = least if state.era > 0 else max(least, needed - len(state.failures.starts))
    if len(nodes) < needed:
        state, waits = waiting.wait(state, waiting.NODES, _waiting_for(state, len(nodes), needed))
        return state, (*([Persist()] if gone else []), *gone, *waits)
    zones = zones_of(state)
    measured = cutting.settled(state)  # on record only once a cut is made: until then more nodes may tell their times
    stages, lacking = _placed(measured, nodes, least, zones, measured.copies_wanted)
    other_copies = ""
    if not lacking:
        measured, other_copies = at_the_start(measured, stages, len(nodes), now)
    if other_copies:  # where they do not fit they follow once they do
        others, small = _placed(measured, nodes, least, zones, measured.copies_wanted)
        stages = stages if small else others
    without = ""
    if lacking and state.era > 0:  # what is left goes on, and standbys follow where they fit
        stages, still = _placed(measured, nodes, least, zones, 1)
        without, lacking = f"without standbys, since {lacking}", still and lacking
    if lacking:
        state, waits = waiting.wait(state, waiting.NODES, f"waiting for nodes with more memory: {lacking}")
        return state, (*([Persist()] if gone else []), *gone, *waits)
    state = measured
    of = counting_of(settings)
    what = counted(settings.pipelines, of.share) if settings.whole_pipelines else counted(settings.stages, of.part)
    reason = f"{what} on {counted(len(nodes), of.node)}, from {of.step} {state.committed}"
    if state.origin.folder:
        reason += f", which is in {state.origin}"
    cut = cutting.in_words(state, stages)
    crossing = in_words(stages, zones, sizes_of(state), prices_of(state))
    reason = reason_of([reason, *filter(None, [cut, other_copies, crossing, without])])
    pause = state.pause  # the era begins where the run is paused: nodes take their parts, and begin no step
    state = replace(state, phase=Phase.RUNNING if pause is None else Phase.PAUSED)
    state, plan, records = with_plan(state, stages, reason_of([reason, *([str(pause)] if pause else [])]), now)
    training = "training" if pause is None else str(pause)
    reading = f"the nodes read {state.origin}"
    state = replace(state, detail=reading if state.origin.folder else training, waits={}, paused_at=now)
    if state.committed >= settings.end:  # nothing is left to be trained: the holders read the final weights
        state = done(state, now)
        text = f"all {settings.steps} steps were committed before: the nodes read the final weights in {state.origin}"
        records = (*records, Record(kinds.Done(), text))
    return state, (*gone, Persist(), Publish(plan), *records)


def _placed(state: State, nodes: Sequence[str], least: int, zones: Zones, copies: int) -> tuple[Stages, str]:
    """The placement on those of the nodes that have memory enough, ``least`` or more; else what they lack."""
    settings, lacking, budget = state.settings, "", budget_of(state)
    while len(nodes) >= least:  # ends: each time at least one of them is left out
        stages = place(
            nodes,
            cutting.costs_of(state),
            settings.stages,
            copies=copies,
            zones=zones,
            pipelines=settings.pipelines,
            parameters=state.layer_costs,
            passed=sizes_of(state).passed,
            whole_pipelines=settings.whole_pipelines,
        )
        small = budget.too_small(stages)
        if not small:
            return stages, ""
        of = counting_of(settings)
        where = f"for {counted(settings.stages, of.part)} on {counted(len(nodes), of.node)}"
        mend = "add nodes, or cut the model into more stages; if a node has more, tell it with --memory"
        lacking = lacking or f"{where} {budget.in_words(small, stages)}; {mend}"
        nodes = [name for name in nodes if name not in small]
    return (), lacking


def _waiting_for(state: State, there: int, needed: int) -> str:
    """How many nodes are missing, and what the run does once they are there."""
    text = f"waiting for {needed - there} more node(s): {there} of {needed} are there"
    if state.origin.folder and state.committed >= state.settings.steps:
        text += f"; all {state.settings.steps} steps are in {state.origin}"
    elif state.origin.folder:
        text += f"; the run goes on from step {state.committed}, which is in {state.origin}"
    if state.failures.newest_start:
        text += f"; the newest node that could not start: {state.failures.newest_start}"
    return text

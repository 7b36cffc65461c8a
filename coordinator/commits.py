"""The gate: when a step commits, and what changes with it: standbys become hot, roles swap, stages are cut anew."""

# A commit is the only moment at which nothing is in flight. So everything but a promotion happens here, in one message
# with the commit: nodes apply the step and adopt the plan that follows in one go. What is decided, in this order:
#
# 1. The clip scale and the loss, from the facts alone: any coordinator with these facts decides the same (rule 7).
# 2. Standbys that have caught up become hot: their facts are on record like everybody's.
# 3. Roles swap back, duties are spread, nodes that drain are let go (``placement.settle``, ``release``).
# 4. A target, another cut of the model, is begun, goes on, or takes the place of the stages if its holders are ready.
#
# Whom the gate waits for: owners and hot standbys of the *present* plan, and nodes being seeded once they have caught
# up (``following``). Not to wait for those would let them fall behind again with every step, and never become hot.

from collections.abc import Collection
from dataclasses import replace

from culm.coordinator import (
    best,
    bookmarks,
    checkpoints,
    cutting,
    doubting,
    draining,
    failures,
    links,
    membership,
    pausing,
    redundancy,
    saving,
    settling,
    stopping_early,
    takeover,
)
from culm.coordinator.commands import Command, Commit, Persist, Publish, Record
from culm.coordinator.decisions import (
    TARGET_LOST,
    Decision,
    budget_of,
    commit_records,
    counting_of,
    done,
    done_record,
    reason_of,
    with_plan,
    zones_of,
)
from culm.coordinator.placement import release, settle
from culm.coordinator.repartition import propose
from culm.coordinator.rolling_back import roll_back
from culm.coordinator.situations import situation_of
from culm.coordinator.state import Layers, LostOwner, Phase, State
from culm.coordinator.step_numbers import numbers_of
from culm.pipeline.checkpoints.manifest import folder_of
from culm.pipeline.clip import stop_in_words
from culm.pipeline.money import kinds
from culm.pipeline.plan import Plan, Stages

# The steps of one commit, as the coordinator sees them; s0 .. s2 are stages, n3 is being seeded with s2:
#
#     Ready  s0:n0 s0:n2 s1:n1 s1:n0 s2:n2 s2:n1      all that the plan requires: commit t
#     Ready  s2:n3                                    too late for t, so it has caught up: commit t + 1 waits for it
#     commit t + 1                                    with a plan in which n3 is a hot standby of s2
#
# A commit is decided before it is persisted: no node waits for Redis. If this coordinator dies in between, nodes that
# have applied the commit tell its successor (rule 8).

# How long before its machine goes a node is let go, replaced or not: a goodbye is cheaper than a lost node, which costs
# its stage's work of the running step.
LEAVE_SECONDS = 5.0


def missing(state: State, plan: Plan) -> tuple[str, ...]:
    """Who is still to report ready for the step being committed, as ``stage:node``.

    Owners and hot standbys are required; a node being seeded is waited for once it has caught up. Where the job audits
    they say so again under each plan of the step, which may name other auditors than the plan before (rule 25).
    """
    nothing: frozenset[int] = frozenset()
    out = []
    for s, stage in enumerate(plan.stages):
        layers = frozenset(stage.layers)
        for node in stage.holders():
            if node not in stage.required() and not layers <= state.following.get(node, nothing):
                continue
            if not layers <= state.facts.get(node, nothing) or doubting.is_to_audit(state, node, layers):
                out.append(f"{s}:{node}")
    # Of a target only what has caught up is waited for, and layer by layer: a holder of the stages to be reports in the
    # pieces in which the present stages cut its layers.
    for stage in plan.target:
        for node in stage.holders():
            awaited = frozenset(stage.layers) & state.following.get(node, nothing)
            if not awaited <= state.facts.get(node, nothing):
                out.append(f"target:{node}")
    return tuple(out)


def commit_if_ready(state: State, now: float) -> Decision:
    """The gate: commits when every holder that the present plan requires is on record (rule 6)."""
    plan = state.plan
    if plan is None or state.phase is not Phase.RUNNING or takeover.recovering(state):
        return state, ()
    # Most reports are not the last. With a thousand stages a number tells that sooner than going through them.
    if not state.facts or sum(map(len, state.facts.values())) < plan.required_copies or missing(state, plan):
        return state, ()
    if why := stopping_early.forgotten(state):
        return roll_back(state, why)
    if (doubt := doubting.doubt_in(state)) is not None:
        return doubting.go_back(state, doubt, now)
    settings = state.settings
    step = state.committed
    numbers = numbers_of(state)
    if numbers.fault and settings.nonfinite == "stop":
        return _stopped(state, numbers.fault)
    recovered = tuple(_recovered(state, lost, now) for lost in state.lost_owners)
    # Before the facts go: a copy is hot by the same facts that make the step count. Owners are among these as well;
    # ``settle`` asks for standbys alone.
    seeded = {
        (s, node)
        for s, stage in enumerate(plan.stages)
        for node in stage.holders()
        if frozenset(stage.layers) <= state.facts.get(node, frozenset())
    }
    stop = numbers.early_stop
    state = links.carried(state, plan, now)  # by the plan of the step that is over, not by the next one
    before = state  # its facts are about the step that is committed now; what follows begins without any
    state = replace(
        state,
        committed=step + 1,
        facts={},
        norms={},
        tallies=(),
        checks=doubting.agreed(state, plan),
        lost_owners=(),
        detail="training",
        waits={},
        ending=replace(state.ending, early_stop=stop),
    )
    state = _without_what_is_written_over(replace(state, failures=failures.committed(state.failures, step)))
    next_plan = None
    records: list[Command] = []
    ended: list[Command] = []
    if numbers.skipped:
        left_out = f"step {step} is skipped, so no weight changes: {numbers.skipped}"
        records.append(Record(kinds.Skipped(step=step, why=numbers.skipped), left_out))
    facts = before.facts
    stages, reasons, released = _rearranged(state, plan, seeded, now)
    target: Stages = ()
    why, chosen, pays = "", None, ""
    if state.committed >= state.end:
        ends = f"the run ends with the weights of step {state.steps}" if stop is not None else ""
        gives_up = "the run is done: the new cut that was being prepared is given up" if plan.target else ""
        ended.append(done_record(state))
        why = reason_of([*filter(None, [ends, gives_up])])
    else:
        state = cutting.settled(state)
        target, why = _target(state, plan, stages, facts, now)
        if target and complete(target, facts, plan) and not state.takes_old:
            stages, target, why = target, (), _reshaped(state, plan.stages, target)
            state = replace(state, changed_at=now)
        state, chosen, pays = redundancy.reviewed(state, plan, now)
    pauses = ""
    if state.pause is not None and state.committed < state.end and not state.takes_old:
        pauses = str(state.pause)
        state, paused = pausing.take_effect(state, now)
        ended.extend(paused)
    # Most commits change nothing of who holds what. A plan with each would make every node derive its program anew.
    # One with the last commit of a run that ends early, and where it pauses: no node knows by itself that no step
    # follows.
    if stages != plan.stages or target != plan.target or pays or stop is not None or pauses:
        reason = reason_of([*reasons, *filter(None, [why, pays, pauses])])
        state, next_plan, planned = with_plan(state, stages, reason, now, target, chosen)
        records.extend(planned)
    state, farewell = draining.let_go(state, released)
    ended.extend(farewell)
    if state.committed >= state.end:
        state = done(state, now)
    # A last checkpoint is asked for once, by the first commit after every node was told to go.
    saves = saving.is_due(state) or saving.last_is_due(state)
    if state.stopping is not None and saving.last_is_due(state):
        state = replace(state, stopping=replace(state.stopping, step=min(state.committed, state.steps)))
    state = saving.asked_for(state)
    commit = Commit(
        term=state.term,
        era=state.era,
        step=step,
        scale=numbers.scale,
        loss=numbers.loss,
        norm=numbers.norm,
        measured=numbers.measured,
        learning_rate=numbers.learning_rate,
        evaluated=numbers.evaluated,
        bookmark=bookmarks.newest(before),
        best_so_far=numbers.best_so_far,
        next_plan=next_plan,
        save=saves,
    )
    state = best.noted(replace(state, last_commit=commit), {step: numbers.evaluated})
    state, manifests = checkpoints.manifests_due(state)
    told: tuple[Command, ...] = (*commit_records(settings, commit), *best.written(state, step), *manifests)
    return state, (Persist(), commit, *told, *recovered, *records, *ended)


def _without_what_is_written_over(state: State) -> State:
    """Takes a checkpoint of the step that has just come off the record, if that step is saved.

    It was found beside the run: nodes now write their files into that folder, and if bits differ its manifest goes
    (``layer_file.write_layer``). Until then it is whole, so a rollback searches for it (``Storage.written_over``).
    """
    step, every, stop = state.committed, state.settings.checkpoint_every, state.ending.early_stop
    if stop is not None:
        step = stop.step
        if (every and step % every == 0) or step == state.origin.step:
            return state  # it is of this run's own bits: it was written when this step came, or read
    # Beside its turn it is saved where every node is to go, where somebody asked for it, and where the run pauses.
    is_last = step >= state.steps or saving.last_is_due(state)
    pauses = state.pause is not None and not state.takes_old
    if not (is_last or saving.is_due(state) or pauses) and (not every or step % every):
        return state
    left = tuple(c for c in state.checkpoints if c.folder != folder_of(state.settings.checkpoint_url, step))
    if left == state.checkpoints:
        return state
    return replace(state, checkpoints=left, storage=replace(state.storage, written_over=step))


def _stopped(state: State, fault: str) -> Decision:
    """Ends the run before the step: a number that is not finite is the job's fault, and no node's (rule 18)."""
    text = stop_in_words(state.committed, fault)
    failed = kinds.Failed(step=state.committed, why=fault, code=1)
    return replace(state, phase=Phase.FAILED, detail=text), (Persist(), Record(failed, text))


def keep(state: State, now: float) -> Decision:
    """After the last commit, and in a pause: what a commit would change of who holds what (rules 17 and 24).

    Nothing is in flight then, so every moment is a commit's boundary. A seeded copy is hot once its node has reported,
    under the present plan, that it is at the last version.
    """
    plan = state.plan
    if plan is None or not state.rests or takeover.recovering(state):
        return state, ()
    nothing: frozenset[int] = frozenset()
    seeded = {
        (s, standby.node)
        for s, stage in enumerate(plan.stages)
        for standby in stage.standbys
        if frozenset(stage.layers) <= state.following.get(standby.node, nothing)
    }
    stages, reasons, released = _rearranged(state, plan, seeded, now)
    commands: list[Command] = []
    target = plan.target if state.phase is Phase.PAUSED and _target_stays(state, plan) else ()
    if stages != plan.stages or plan.target != target:
        given_up = "the run is done: the new cut that was being prepared is given up"
        reason = reason_of(reasons or [TARGET_LOST if state.phase is Phase.PAUSED else given_up])
        state, kept, records = with_plan(state, stages, reason, now, target)
        commands += [Persist(), Publish(kept), *records]
    state, farewell = draining.let_go(state, released)
    return state, (*commands, *farewell)


def _rearranged(
    state: State, plan: Plan, seeded: Collection[tuple[int, str]], now: float
) -> tuple[Stages, list[str], list[str]]:
    """The stages from the next step on, the reasons, and the nodes that can go now."""
    settings = state.settings
    leaving = draining.leaving(state)
    if state.takes_old:
        return plan.stages, [], []
    if not settings.redundancy and not leaving and not any(stage.standbys for stage in plan.stages):
        return plan.stages, [], []
    usable = membership.usable(state)
    stages, settled = settle(
        plan.stages,
        usable,
        seeded,
        leaving,
        state.copies_wanted,
        zones_of(state),
        state.layer_costs,
        budget_of(state),
        counting_of(state.settings),
    )
    reasons = list(settled)
    released = []
    for name in sorted(n for n in leaving if state.nodes[n].draining):
        node = state.nodes[name]
        duties = [s for s, stage in enumerate(stages) if name in stage.holders()]
        # Nobody has its stage's state yet: it stays to the end of its machine, and is lost then, if it has to be.
        if any(name in stages[s].owners for s in duties):
            continue
        replaced = all(  # by one that is being seeded
            any(not b.hot for b in stages[s].standbys) or len(stages[s].distinct_owners) > 1 for s in duties
        )
        in_time = node.leaves_at is None or now < node.leaves_at - LEAVE_SECONDS
        if duties and replaced and in_time:
            continue
        stages = release(stages, name)
        released.append(name)
        reasons.append(f"{name} has handed over what it held, and goes")
    return stages, reasons, released


def complete(target: Stages, facts: Layers, plan: Plan) -> bool:
    """Whether every holder of the stages to be holds all of their layers at the version being committed.

    A layer that the present plan does not name for a node is given up there with this commit (rule 6).
    """
    return all(
        frozenset(s.layers) <= facts.get(n, frozenset()) and plan.layers_of(n).issuperset(s.layers)
        for s in target
        for n in s.holders()
    )


def _target_stays(state: State, plan: Plan) -> bool:
    """Whether every node that the stages to be need is there, and does not go."""
    there = {(n, state.nodes[n].incarnation) for n in membership.usable(state)}
    return all((n, plan.members[n].incarnation) in there for s in plan.target for n in s.holders())


def _target(state: State, plan: Plan, stages: Stages, facts: Layers, now: float) -> tuple[Stages, str]:
    """The stages to prepare from now on: those under way as long as their nodes stay, else new ones that pay."""
    usable = membership.usable(state)
    if plan.target:
        return (plan.target, "") if _target_stays(state, plan) else ((), TARGET_LOST)
    # One thing at a time: while copies are seeded, or a node hands over, a new cut would compete for the same link.
    settings = state.settings
    busy = any(not b.hot for s in stages for b in s.standbys) or any(n.draining for n in state.nodes.values())
    asked = settings.stages
    growing = len(stages) < min(asked, len(usable))
    if settings.whole_pipelines:
        growing = len(stages[0].distinct_owners) < min(settings.pipelines, len(usable))
    elif settings.pipelines > 1:  # or most nodes have no work
        owners = {owner for stage in stages for owner in stage.distinct_owners}
        most = settings.pipelines * max(asked, settings.most_stages)
        growing = growing or 2 * len(owners) <= min(most, len(usable))
    if busy or settling.quiet(state, now) < settings.settle_seconds / (settling.GROWS_AFTER if growing else 1):
        return (), ""
    proposal = propose(stages, situation_of(state, now))
    return proposal if proposal is not None else ((), "")


def _reshaped(state: State, before: Stages, after: Stages) -> str:
    settings = state.settings
    if not settings.whole_pipelines:
        return f"{len(after)} stages take the place of {len(before)}"
    servers = [len(stages[0].distinct_owners) for stages in (before, after)]
    return f"{settings.pipelines} chunks are shared out among {servers[1]} graph servers in place of {servers[0]}"


def _recovered(state: State, lost: LostOwner, now: float) -> Record:
    resumed = (lost.resumed_at if lost.resumed_at is not None else now) - lost.at
    recovered = kinds.Recovered(
        node=lost.node,
        stage=lost.stage,
        step=state.committed,
        detect_ms=round(lost.detect_seconds * 1e3, 1),
        resume_ms=round(resumed * 1e3, 1),
        redone=lost.redone,
    )
    of = counting_of(state.settings)
    done = f"{lost.redone} instructions of {of.part} {lost.stage} were redone"
    text = f"{of.step} {state.committed} is committed in spite of the lost node {lost.node}: {done}"
    return Record(recovered, text)

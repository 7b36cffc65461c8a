"""How a decision about placement becomes a plan, with its consequences for exposure on record."""

# ``placement`` says who holds what, and why. ``with_plan`` makes a plan of that. There is one other way to a plan: a
# leader that takes over adopts the one that nodes obey. What each new plan changes of the state, in one place:
#
#     generation       one more: nodes obey the newest plan that they have seen
#     members          every node that can be given work, and whoever has some
#     exposed_since    begins for stages that have no hot standby now, and ends, with a record, for those that have one
#     following        is kept only for layers that a node held before and holds now

from collections.abc import Mapping, Sequence
from dataclasses import replace

from culm.coordinator import stopping_early
from culm.coordinator.commands import Command, Commit, Persist, Publish, Record
from culm.coordinator.crossing import StepBytes
from culm.coordinator.memory import Budget
from culm.coordinator.node_prices import Prices
from culm.coordinator.state import Layers, Phase, Settings, State
from culm.coordinator.zones import Zones
from culm.pipeline.counting import Counting, of_chunks
from culm.pipeline.identity_parts import samples_per_epoch
from culm.pipeline.money import kinds
from culm.pipeline.plan import Member, Plan, Redundancy, Stages

TARGET_LOST = "a node that the prepared cut needs goes: that cut is given up"

Decision = tuple[State, tuple[Command, ...]]


def members_of(state: State) -> Mapping[str, Member]:
    """Every node that can be given work, or has some: after a takeover it may not have reported yet."""
    # After a rollback the members are taken anew: the address or the zone of one may be another now.
    before = state.plan.members if state.plan is not None and state.plan.era == state.era else {}
    members: dict[str, Member] = {}
    for name, node in state.nodes.items():
        known = before.get(name)
        same = known is not None and (known.incarnation, known.address, known.zone) == (
            node.incarnation,
            node.address,
            node.zone,
        )
        if known is not None and same:
            members[name] = known  # of a thousand members a lost node changes one
        elif node.available:
            members[name] = Member(name, node.incarnation, node.address, node.zone)
    return members


def zones_of(state: State) -> Zones:
    """Where each node says that it is; empty where it does not know."""
    return {n.node: n.zone for n in state.nodes.values()}


def budget_of(state: State) -> Budget:
    """What layers take of a node's memory, and what each node has."""
    layers = state.layer_bytes
    if state.settings.on_accelerators:
        layers = tuple(replace(each, boundary=0) for each in layers)
    return Budget(
        layers=layers,
        microbatches=state.settings.kept_microbatches,
        told={n.node: n.memory_bytes for n in state.nodes.values()},
        kept={n.node: n.spill_above for n in state.nodes.values()},
        hosted=state.settings.hosts_standbys,
        target=state.plan.target if state.plan is not None else (),
    )


def prices_of(state: State) -> Prices:
    """What each node costs, as far as it is known."""
    return {n.node: n.price for n in state.nodes.values()}


def sizes_of(state: State) -> StepBytes:
    """What a step sends is as large as this."""
    # A boundary is counted with its gradient, and passed in one way here.
    passed = tuple(state.settings.microbatches * each.boundary / 2 for each in state.layer_bytes)
    return StepBytes(state.layer_costs, passed if any(passed) else ())


def counting_of(settings: Settings) -> Counting:
    """The words for what the run counts, and for what its plans are made of."""
    return of_chunks(settings.pipelines if settings.whole_pipelines else 0)


def reason_of(reasons: Sequence[str]) -> str:
    return "; ".join(reasons)


def with_plan(
    state: State, stages: Stages, reason: str, now: float, target: Stages = (), redundancy: Redundancy | None = None
) -> tuple[State, Plan, tuple[Command, ...]]:
    """The state under the next plan, the plan, and what to record of it. The redundancy stays as it is by default."""
    # Above every generation of this term, published or not: two plans never share a number (rule 3).
    generation = state.generation + 1
    before = state.plan
    if redundancy is None and before is not None:
        redundancy = before.redundancy
    plan = Plan(
        term=state.term,
        generation=generation,
        era=state.era,
        step=state.committed,
        stages=stages,
        members=members_of(state),
        reason=reason,
        origin=state.origin,
        target=target,
        redundancy=redundancy,
        leader=state.leader,
        early_stop=state.ending.early_stop,
        pause=state.pause if state.phase is Phase.PAUSED else None,
    )
    exposed = plan.exposed() if state.settings.redundancy else ()
    since = {s: state.exposed_since.get(s, now) for s in exposed}
    records: list[Command] = [plan_record(state, plan)]
    # A new cut has other stages under the same numbers: whose number is gone is exposed no more, and nothing is told.
    for s, start in state.exposed_since.items():
        if s not in since and s < len(stages):
            node = stages[s].hot_standby() or ""
            ms = round((now - start) * 1e3, 1)
            part = counting_of(state.settings).part
            text = f"{part} {s} has a hot standby again: {node}, after {ms:.1f} ms without one"
            records.append(Record(kinds.Hot(node=node, stage=s, exposure_ms=ms), text))
    state = replace(
        state, generation=generation, exposed_since=since, following=_still_following(state, plan), plan=plan
    )
    return state, plan, tuple(records)


def without_lost_target(state: State, now: float) -> Decision:
    """Gives up the stages to be if a node that they need has gone. At once: reducers wait for every node of a plan."""
    plan = state.plan
    if plan is None or all(name in state.nodes for stage in plan.target for name in stage.holders()):
        return state, ()
    state, published, records = with_plan(state, plan.stages, TARGET_LOST, now)
    return state, (Persist(), Publish(published), *records)


def _still_following(state: State, plan: Plan) -> Layers:
    """Whoever gives a layer up has to be seeded with it from the beginning the next time."""
    before = state.plan
    if before is None or before.era != plan.era:
        return {}
    kept = {}
    for node, layers in state.following.items():
        held = layers & before.layers_of(node) & plan.layers_of(node)
        if held:
            kept[node] = held
    return kept


def done(state: State, now: float) -> State:
    """No step follows. Who had caught up for a commit has not shown yet that it applied the last one."""
    if state.phase is Phase.DONE:
        return state
    ending = replace(state.ending, done_at=now)
    detail = stopping_early.over_in_words(state)
    state = replace(state, pause=None, paused_at=None, saving=None)
    return replace(state, phase=Phase.DONE, detail=detail, following={}, facts={}, ending=ending)


def done_record(state: State) -> Record:
    """What the event log says once every step is committed."""
    stop = state.ending.early_stop
    early = stopping_early.in_words(state.settings, stop) if stop is not None else ""
    all_of_them = f"all {state.settings.steps} {counting_of(state.settings).step}s are committed"
    return Record(kinds.Done(step=state.steps, early=early), early or all_of_them)


def plan_record(state: State, plan: Plan) -> Record:
    """What the event log says of a plan: who does what, and what a step trains on."""
    # Whole, though most of it is as before: whoever reads the log from the middle has to know who does what.
    known = state.settings
    on_graph = known.whole_pipelines
    planned = kinds.Planned(
        generation=plan.generation,
        steps=state.steps,
        stage_count=len(plan.stages),
        stages=plan.stages,
        samples_per_step=known.samples_per_step,
        tokens_per_step=known.tokens_per_step,
        samples_per_epoch=samples_per_epoch(state.agreement.nodes.parts),
        chunks=known.pipelines if on_graph else None,
        staleness=known.staleness.most if on_graph else None,
        refresh=known.staleness.refresh if on_graph else None,
        fresh_from=known.staleness.fresh_from if on_graph else None,
    )
    return Record(planned, plan.reason)


def events_of(settings: Settings, commit: Commit) -> tuple[kinds.Committed | kinds.Measured | kinds.Evaluated, ...]:
    """What a commit tells the event log."""
    said: list[kinds.Committed | kinds.Measured | kinds.Evaluated] = []
    if commit.evaluated:  # of the weights with which the step began
        loss, *others = commit.evaluated
        metrics = dict(zip(settings.tally.metrics, others, strict=False))
        said.append(kinds.Evaluated(step=commit.step, loss=loss, metrics=metrics))
    if commit.step < settings.steps and commit.early_stop is None:
        said.append(
            kinds.Committed(
                step=commit.step,
                loss=commit.loss,
                scale=commit.scale,
                norm=commit.norm,
                learning_rate=commit.learning_rate,
            )
        )
    if commit.measured:
        named = dict(zip(settings.tally.measured, commit.measured, strict=False))
        said.append(kinds.Measured(step=commit.step, metrics=named))
    return tuple(said)


def commit_records(settings: Settings, commit: Commit) -> tuple[Record, ...]:
    """The same with words."""
    return tuple(Record(event, kinds.words_of(event)) for event in events_of(settings, commit))

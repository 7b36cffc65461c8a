"""The chain of stages: what each instruction takes and gives, and which duty, and so which node, is on the other side.

The only module that knows that stages stand in a row:

    samples -> [stage 0] -- ACTIVATION --> [stage 1] -- ACTIVATION --> [stage 2] -> loss
               [stage 0] <--- GRADIENT --- [stage 1] <--- GRADIENT --- [stage 2]

A microbatch's target travels beside its activations, so only the first stage takes samples. What is evaluated goes
forward alone, as EVALUATED. A pipeline's tensors stay in that pipeline. Across pipelines a stage's owners add up its
gradient: PARTIAL goes from an owner to the bucket's reducer, REDUCED from the reducer to all other holders. ACCUMULATED
goes to a standby.

On a graph the pipelines are its chunks, and the stages its layers (``culm.pipeline.neighbours``). Then chunks exchange
values at every layer: a forward takes the activations of all chunks that have edges into its own, and its backward
gives each of these a gradient of its own. All else is as above.
"""

from culm.pipeline.audits import auditor_of
from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.keys import ACCUMULATED, ACTIVATION, EVALUATED, GRADIENT, PARTIAL, REDUCED, Key, Kind
from culm.pipeline.plan import Plan

FORWARDS: tuple[Pass, ...] = ("F", "E")
_GIVES: dict[Pass, Kind] = {"F": ACTIVATION, "E": EVALUATED}


def takes_samples(stage: int) -> bool:
    """Whether the stage's forwards take their input and its target from the dataset."""
    return stage == 0


def ends_in_loss(stage: int, stages: int) -> bool:
    """Whether the stage's forwards end in the loss."""
    return stage == stages - 1


def stages_after(stage: int, stages: int) -> int:
    """How many stages a microbatch still has to pass."""
    return stages - stage - 1


def _before(duty: Duty) -> Duty | None:
    return Duty(duty.pipeline, duty.stage - 1) if duty.stage > 0 else None


def _after(duty: Duty, stages: int) -> Duty | None:
    return Duty(duty.pipeline, duty.stage + 1) if duty.stage < stages - 1 else None


def awaited(instruction: Instruction, stages: int) -> Instruction | None:
    """The neighbour's instruction whose result this one takes; None where it takes none."""
    duty, op, microbatch = instruction
    near = _before(duty) if op in FORWARDS else _after(duty, stages) if op == "B" else None
    return Instruction(near, op, microbatch) if near is not None else None


def awaits(instruction: Instruction, stages: int) -> Instruction | None:
    """The neighbour's instruction that takes this one's result; None where nobody does."""
    duty, op, microbatch = instruction
    near = _after(duty, stages) if op in FORWARDS else _before(duty) if op == "B" else None
    return Instruction(near, op, microbatch) if near is not None else None


def inputs_of(instruction: Instruction, stages: int) -> tuple[Instruction, ...]:
    """The instructions whose results this one needs: its own duty's, earlier in its order, and a neighbour's."""
    duty, op, microbatch = instruction
    own = {"B": (Instruction(duty, "F", microbatch),), "W": (Instruction(duty, "B", microbatch),)}.get(op, ())
    other = awaited(instruction, stages)
    return own if other is None else (*own, other)


def result_of(instruction: Instruction, era: int, step: int) -> Key:
    """The key of what a forward or an input's backward gives. At the chain's ends nobody consumes it."""
    (pipeline, stage), op, microbatch = instruction
    return Key(era, step, pipeline, _GIVES.get(op, GRADIENT), stage, microbatch)


def input_of(instruction: Instruction, stages: int, era: int, step: int) -> Key | None:
    """The key of the neighbour's result that the instruction takes; None where it takes none: see ``awaited``."""
    (pipeline, stage), op, microbatch = instruction
    near = stage - 1 if op in FORWARDS else stage + 1 if op == "B" else -1
    return Key(era, step, pipeline, _GIVES.get(op, GRADIENT), near, microbatch) if 0 <= near < stages else None


def inputs(instruction: Instruction, plan: Plan, era: int, step: int) -> tuple[Key, ...]:
    """The keys of all that the instruction takes of others, in the order in which it takes them."""
    key, near = input_of(instruction, len(plan.stages), era, step), plan.neighbours
    if key is None or near is None:
        return (key,) if key is not None else ()
    own, of = instruction.duty.pipeline, step - near.staleness.lag(step, plan.origin.step)
    if instruction.op in FORWARDS:
        return tuple([key._replace(pipeline=q, step=step if q == own else of) for q in near.before[own]])
    return tuple([key._replace(pipeline=q, use=own, step=step if q == own else of) for q in near.after[own]])


def results(instruction: Instruction, plan: Plan, era: int, step: int) -> tuple[Key, ...]:
    """The keys of all that the instruction gives, in order: one, but of a backward on a graph."""
    key, near = result_of(instruction, era, step), plan.neighbours
    if near is None or instruction.op in FORWARDS:
        return (key,)
    return tuple([key._replace(use=q) for q in near.before[instruction.duty.pipeline]])


def takers(key: Key, plan: Plan) -> tuple[Instruction, ...]:
    """The instructions that take an activation or a gradient."""
    taker, near = awaits(maker_of(key), len(plan.stages)), plan.neighbours
    if taker is None or near is None:
        return (taker,) if taker is not None else ()
    pipelines = (key.use,) if key.kind is GRADIENT else near.after[key.pipeline]
    return tuple(taker._replace(duty=Duty(p, taker.stage)) for p in pipelines)


def maker_of(key: Key) -> Instruction:
    """The instruction that gives this activation or gradient."""
    op: Pass = "F" if key.kind is ACTIVATION else "E" if key.kind is EVALUATED else "B"
    return Instruction(key.duty, op, key.index)


# Nobody writes a send or a receive: these functions derive each from a key and the plan. So a failover is another plan,
# and no code of its own.

CROSSES = (ACTIVATION, GRADIENT, EVALUATED)  # the kinds that pass from a stage to its neighbour


def is_producer(node: str, key: Key, plan: Plan) -> bool:
    """Whether this node's value of the key counts under the plan (rule 3)."""
    # The sender may obey a plan with more stages than this one (rule 3).
    if key.stage >= len(plan.stages):
        return False
    stage = plan.stages[key.stage]
    if key.pipeline >= len(stage.owners):
        return False
    if key.kind in (PARTIAL, REDUCED) and key.index not in plan.buckets(key.stage):
        return False
    if key.use and key.kind is PARTIAL:
        if key.use not in plan.uses_of(key.index):
            return False
        stage = plan.stages[plan.stage_with(key.use)]
    if key.kind is REDUCED:
        return node == plan.reducer_of(key.stage, key.index)
    if key.kind is PARTIAL:
        return all(owner == node for owner in stage.owners[key.pipeline : key.end])
    return node == stage.owners[key.pipeline]


def consumers(key: Key, plan: Plan, node: str) -> tuple[str, ...]:
    """Who needs the key from this node, which has its value; may include the node itself when it hosts both sides."""
    kind, stage = key.kind, key.stage
    if kind is ACTIVATION or kind is EVALUATED:
        if stage >= len(plan.stages) - 1:
            return ()
        owners = plan.stages[stage + 1].owners
        if plan.neighbours is not None:
            return tuple(dict.fromkeys([owners[p] for p in plan.neighbours.after[key.pipeline]]))
        owner = owners[key.pipeline]
        auditor = _auditor_with(key, plan) if plan.audit and kind is ACTIVATION else None
        return (owner, auditor) if auditor is not None else (owner,)
    if kind is GRADIENT:
        of = key.pipeline if plan.neighbours is None else key.use
        return (plan.stages[stage - 1].owners[of],) if stage > 0 else ()
    if kind is REDUCED:
        # Whoever has it gives it to a reducer that lacks it: one that was named after the lost one had sent it.
        receivers, reducer = plan.receivers(key.index), plan.reducer_of(stage, key.index)
        return receivers if node == reducer else (reducer,) if node in receivers else ()
    if kind is PARTIAL:
        return (plan.reducer_of(stage, key.index),) if is_producer(node, key, plan) else ()
    if kind is ACCUMULATED:
        # Of several owners' standbys none is known to be the heir: a peer comes first if it has less to do.
        standby = plan.stages[stage].hot_standby() if len(plan.stages[stage].distinct_owners) == 1 else None
        return (standby,) if standby is not None else ()
    return ()


def _auditor_with(key: Key, plan: Plan) -> str | None:
    """Who runs the forward again that takes this activation."""
    return auditor_of(plan, Duty(key.pipeline, key.stage + 1), key.index, key.era, key.step)


def _beside(duty: Duty, plan: Plan) -> tuple[Duty, ...]:
    """The duties with which this one exchanges activations and gradients, those after it first."""
    before, after, near = _before(duty), _after(duty, len(plan.stages)), plan.neighbours
    if near is None:
        return tuple(each for each in (after, before) if each is not None)
    to = near.after[duty.pipeline] if after is not None else ()
    of = near.before[duty.pipeline] if before is not None else ()
    return (*(Duty(p, duty.stage + 1) for p in to), *(Duty(p, duty.stage - 1) for p in of))


def near(duty: Duty, plan: Plan) -> set[str]:
    """The nodes that exchange activations and gradients with the duty's owner under the plan, maybe itself."""
    found = {plan.owner_of(each) for each in _beside(duty, plan)}
    after = _after(duty, len(plan.stages)) if plan.audit else None
    return found if after is None else found.union(plan.stages[after.stage].required())


def is_taken(key: Key, sender: str, receiver: str, plan: Plan) -> bool:
    """Whether the receiver takes the key's value from this sender (rule 3)."""
    if is_producer(sender, key, plan):
        return receiver in consumers(key, plan, sender)
    if key.kind is not REDUCED or key.stage >= len(plan.stages) or key.index not in plan.buckets(key.stage):
        return False
    reducer = plan.reducer_of(key.stage, key.index)
    return receiver == reducer and sender in plan.receivers(key.index)


def peers_of(node: str, plan: Plan) -> tuple[str, ...]:
    """The nodes to which this one may send tensors under the plan, without itself."""
    peers: dict[str, None] = {}
    for duty in plan.duties_of(node):
        peers.update((plan.owner_of(each), None) for each in _beside(duty, plan))
        after = _after(duty, len(plan.stages))
        if plan.audit and after is not None:
            peers.update(dict.fromkeys(plan.stages[after.stage].required()))
    for stage, layer in plan.held_layers(node):
        reducers = {bucket: plan.reducer_of(stage, bucket) for bucket in plan.buckets_of(stage, layer)}
        peers.update(dict.fromkeys(reducers.values()))
        mine = [bucket for bucket, reducer in reducers.items() if reducer == node]
        for bucket in (*mine[:1], *filter(plan.is_shared, mine[1:])):  # the others have the same receivers
            peers.update(dict.fromkeys(plan.receivers(bucket)))
        peers.update((plan.reducer_of(plan.stage_of(x.bucket), x.bucket), None) for x in plan.addends[layer] if x.use)
    peers.pop(node, None)
    return tuple(peers)

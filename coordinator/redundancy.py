"""Which redundancy pays: what it takes of a step, off the bubbles, against what a lost node is expected to cost."""

# What each choice costs and saves, a step:
#
#     lazy             takes nothing, and leaves half a stage's forwards and backwards to redo after a lost node
#     eager            takes nothing while its forwards fit into the bubbles; the heir runs only backwards again
#     ship every k     takes the link for what does not fit into the bubbles; the heir redoes k / 2 microbatches
#
# Lost nodes come at the observed rate. The choice with the least expected seconds wins, if it saves more than
# WORTHWHILE.

from dataclasses import dataclass, replace

from culm.coordinator.state import Review, State
from culm.pipeline.plan import Plan, Redundancy
from culm.pipeline.times import TimeSplit

REVIEW_STEPS = 20  # between two looks: so many steps tell times that are not one step's luck
GRADIENT_BYTES = 4  # of a parameter, in float32
# Of a step that another choice has to save: below that the present one stays, or two that cost the same would take
# turns, each with a plan of its own.
WORTHWHILE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Of the last steps: times in seconds a step, those of the busiest node."""

    step: float
    forward: float
    backward: float
    bubble: float  # what the node waited for tensors, or ran ahead meanwhile
    microbatches: int  # of each pipeline
    pipelines: int = 1
    gradient_bytes: float = 0.0  # of the largest stage
    bytes_per_second: float = 0.0  # of the slowest link; 0: nothing large enough has been sent to tell
    lost_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Price:
    """What a choice takes of every step, and of a step in which a node is lost; seconds."""

    choice: Redundancy
    of_step: float
    to_redo: float

    def expected(self, seen: Observed) -> float:
        return self.of_step + seen.lost_per_second * seen.step * self.to_redo


def prices(seen: Observed) -> list[Price]:
    """Of every choice, the simpler ones first.

    On average a node is lost in the middle of its stage's work, and its heir redoes that half. With shipped gradients
    it redoes half of what lies between two shipments. Forwards that were run ahead, as many as the bubbles hold, are
    not redone.
    Shipping takes the time of its bytes on the link, but for what is left of the bubbles.
    """
    fits = min(1.0, seen.bubble / seen.forward) if seen.forward else 0.0
    found = []
    for every in [0, *_periods(seen)]:
        # Of each pipeline what came after its last shipment is lost, also of one whose backwards are all done.
        part = every / seen.microbatches if every else 1.0
        for eager in (False, True) if fits > 0.0 else (False,):
            ahead = fits if eager else 0.0
            redone = part / 2 * (seen.forward * (1.0 - ahead) + seen.backward)
            left = seen.bubble - ahead * seen.forward
            found.append(Price(Redundancy(eager, every), max(0.0, _link_seconds(seen, every) - left), redone))
    return found


def _periods(seen: Observed) -> list[int]:
    if not seen.bytes_per_second:
        return []
    return [k for k in (8, 4, 2, 1) if k < seen.microbatches]


def _link_seconds(seen: Observed, every: int) -> float:
    """What a step's shipments take before the last gradient, which is sent anyhow."""
    if not every:
        return 0.0
    shipments = seen.pipelines * ((seen.microbatches - 1) // every)
    return shipments * seen.gradient_bytes / seen.bytes_per_second


def choose(seen: Observed, present: Redundancy) -> tuple[Redundancy, str]:
    """What pays most, and why; the present choice if nothing saves enough over it."""
    found = prices(seen)
    best = min(found, key=lambda price: price.expected(seen))
    now = next((price for price in found if price.choice == present), None)
    if now is not None and now.expected(seen) - best.expected(seen) < WORTHWHILE * seen.step:
        return present, ""
    interval = f"a lost node every {1 / seen.lost_per_second:.0f} s" if seen.lost_per_second else "no lost node so far"
    why = (
        f"{best.choice}: with {interval}, a step of {seen.step * 1e3:.0f} ms and bubbles of {seen.bubble * 1e3:.0f} ms "
        f"it takes {best.of_step * 1e3:.1f} ms of a step "
        f"and leaves {best.to_redo * 1e3:.0f} ms to redo when a node is lost"
    )
    return best.choice, why


def reviewed(state: State, plan: Plan, now: float) -> tuple[State, Redundancy | None, str]:
    """Every so many calm steps: the state with the moment noted, what is chosen then, and why if that is new."""
    if not state.settings.auto:
        return state, plan.redundancy, ""
    present = plan.redundancy or Redundancy()
    last = state.review
    if last is not None and last.generation == plan.generation and state.committed - last.step < REVIEW_STEPS:
        return state, present, ""
    times = {(node.node, node.incarnation): node.times for node in state.nodes.values()}
    state = replace(state, review=Review(plan.generation, state.committed, now, times))
    if last is None or last.generation != plan.generation:
        return state, present, ""
    seen = observe(state, plan, last, now)
    if seen is None:
        return state, present, ""
    return state, *choose(seen, present)


def observe(state: State, plan: Plan, last: Review, now: float) -> Observed | None:
    """What the steps since the last look have shown; None if their nodes have told nothing of it."""
    steps = state.committed - last.step
    owners = {owner for stage in plan.stages for owner in stage.distinct_owners}
    spent = [
        _since(node.times, last.times[node.node, node.incarnation])
        for node in state.nodes.values()
        if node.node in owners and (node.node, node.incarnation) in last.times
    ]
    busiest = max(spent, key=lambda times: times.forward + times.backward, default=None)
    if busiest is None or busiest.forward <= 0.0 or steps < 1:
        return None
    speeds = [node.bytes_per_second for node in state.nodes.values() if node.node in owners]
    parameters = max(sum(state.layer_costs[layer] for layer in stage.layers) for stage in plan.stages)
    ahead = busiest.redundant if plan.redundancy is not None and plan.redundancy.eager else 0.0
    return Observed(
        step=(now - last.at) / steps,
        forward=busiest.forward / steps,
        backward=busiest.backward / steps,
        bubble=(busiest.bubble + ahead) / steps,
        microbatches=state.settings.microbatches,
        pipelines=state.settings.pipelines,
        gradient_bytes=GRADIENT_BYTES * parameters,
        bytes_per_second=min(filter(None, speeds), default=0.0),
        lost_per_second=_lost_per_second(state, now),
    )


def _since(now: TimeSplit, then: TimeSplit) -> TimeSplit:
    return TimeSplit(
        forward=now.forward - then.forward,
        backward=now.backward - then.backward,
        redundant=now.redundant - then.redundant,
        bubble=now.bubble - then.bubble,
    )


def _lost_per_second(state: State, now: float) -> float:
    """Of an owner, as often as nodes were lost lately."""
    lost_at = state.lost_at
    return len(set(lost_at)) / max(1.0, now - lost_at[0]) if lost_at else 0.0

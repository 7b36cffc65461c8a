"""What copies of stages cost a run, and what a rollback does, as far as the coordinator can tell. Pure."""

# A commit waits until every copy has the step's reduced gradient. So a copy more makes each step longer by the bytes
# that the busiest sender then sends more (``gradient_bytes``), on the slowest link. Where the owners of a stage are
# copies enough nothing more is sent, and a copy costs nothing. What else a copy takes:
#
#     memory     a stage's state on each holder: it bounds the number, and has no price
#     seeding    the state moves once, at a price in training speed (``moving``)
#
# A lost copy is missing until another node has the stage's state and a commit has counted it: the step that is
# disturbed, the seconds that seeding takes (as fast as the link goes where one copy is left), and the step in which
# the last gradients follow.
#
# A rollback takes half of the steps between two checkpoints once more, and reads the state again. What nobody has
# measured is taken from what the job says:
#
#     how long a step takes          the rest of the run is taken to last as long as the caller says
#     how fast links are             ``seed_bytes_per_second``: nodes may be seeded that fast beside their training
#     how fast checkpoints are read  the same; each holder reads its own stage
#
# Where no checkpoints are saved a rollback takes all steps again that were taken until then.

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from culm.coordinator.decisions import budget_of
from culm.coordinator.gradient_bytes import most_sent
from culm.coordinator.moving import SLOWDOWN, STATE_BYTES
from culm.coordinator.settling import HOUR
from culm.coordinator.state import State
from culm.pipeline.plan import Stages

FEWEST = 2  # copies; what these cost is no part of the choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """In seconds."""

    step: float  # one takes
    of_step: Callable[[int], float]  # what a step is longer by with so many copies. Invariant: it never falls
    to_seed: float  # once, for one copy more of every stage
    rollback: float
    exposed: float = 0.0  # from the last but one copy of a stage that is lost until another one is whole
    taken: str = ""  # what nobody has measured, and what is taken instead, in words


def costs_of(state: State, stages: Stages, hours: float) -> Costs:
    """``hours``: how long the rest of the run is taken to last as long as no step has been timed."""
    settings, parameters = state.settings, state.layer_costs
    taken = []
    steps_left = max(1, state.steps - state.committed)
    step = median(state.watch.recent) if state.watch.recent else hours * HOUR / steps_left
    if not state.watch.recent:
        taken.append(f"no step has been timed, so the rest of the run is taken to last {hours:.1f} h")
    link = min((x for n in state.nodes.values() if (x := n.bytes_per_second)), default=0.0)
    if not link:
        link = settings.seed_bytes_per_second
        taken.append(f"no link has been measured, so each is taken to carry {link / 1e6:.0f} MB/s, as seeding may")
    fewest = most_sent(stages, parameters, FEWEST)
    largest = STATE_BYTES * max(sum(parameters[x] for x in stage.layers) for stage in stages)
    if settings.checkpoint_every:
        again = settings.checkpoint_every / 2
    else:
        again = max(0, state.committed - state.origin.step) + steps_left / 2
        taken.append("no checkpoints are saved, so a rollback takes all steps again that were taken until then")
    moves = largest / settings.seed_bytes_per_second
    return Costs(
        step=step,
        of_step=lambda copies: max(0.0, most_sent(stages, parameters, copies) - fewest) / link,
        to_seed=SLOWDOWN * moves,
        rollback=again * step + moves,
        exposed=largest / max(link, settings.seed_bytes_per_second) + (2.0 * step if state.watch.recent else 0.0),
        taken="; ".join(taken),
    )


def most_copies(state: State) -> int:
    """How many of every stage there is memory for, at most; 0 where nobody knows."""
    budget = budget_of(state)
    nodes = [n.node for n in state.nodes.values() if n.available]
    each = sum(layer.state for layer in budget.layers)
    if budget.hosted or not each or not nodes or not all(map(budget.binds, nodes)):
        return 0
    return max(1, sum(budget.told[name] for name in nodes) // each)

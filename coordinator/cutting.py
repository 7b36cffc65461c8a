"""What the stages are cut by: the layers' parameters, or times that nodes measured. Pure, with a reason in words."""

# With ``[pipeline] cut = "measured"``:
#
#     no times are on record     a node that joins is asked to measure, and tells its times with Available
#     a cut is to be made        the median over the nodes present, layer by layer, goes on record (``settled``)
#     from then on               every cut goes by these, also a successor's: the store keeps them
#     no node has told any       the parameters decide, as long as that is so; the plan's reason says why
#
# No bit depends on where the model is cut (rule 23), so nodes may tell different times, and wrong ones do no harm. But
# all nodes have to obey one cut: the coordinator alone makes it, and it is in the plan.
#
# How many bytes move, and who adds up which gradient, is another matter: that goes by parameters always.

from dataclasses import replace
from statistics import median

from culm.coordinator.state import State
from culm.pipeline.plan import Stages


def wanted(state: State) -> bool:
    """Whether a node's times are still of use."""
    return state.settings.measured and not state.layer_seconds


def settled(state: State) -> State:
    """The state before a cut is made: with the layers' times on record, if they are wanted and a node knows them."""
    if not wanted(state):
        return state
    layers = len(state.layer_costs)
    told = [n.layer_seconds for n in state.nodes.values() if n.available and len(n.layer_seconds) == layers]
    if not told:
        return state
    return replace(state, layer_seconds=tuple(map(median, zip(*told, strict=True))))


def costs_of(state: State) -> tuple[float, ...]:
    """Of each layer, in one unit."""
    return state.layer_seconds or state.layer_costs


def in_words(state: State, stages: Stages) -> str:
    """By which times the stages are cut, or why by none; empty where the job asks for none."""
    if not state.settings.measured:
        return ""
    if state.layer_seconds:
        each = [1e3 * sum(state.layer_seconds[layer] for layer in stage.layers) for stage in stages]
        return f"cut by measured times: of {sum(each):.2f} ms a microbatch the longest stage takes {max(each):.2f}"
    why = next((f"{n.node} could not measure: {n.unmeasured}" for n in state.nodes.values() if n.unmeasured), "")
    return f"cut by parameters, since no node knows how long its layers take{f' ({why})' if why else ''}"

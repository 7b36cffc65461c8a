"""What a choice of a shape depends on, as the state of a run has it. Pure."""

from statistics import median

from culm.coordinator import cutting, membership, settling
from culm.coordinator.decisions import budget_of, prices_of, sizes_of, zones_of
from culm.coordinator.state import State
from culm.coordinator.step_cost import Situation
from culm.pipeline.text import natural_order


def situation_of(state: State, now: float) -> Situation:
    """For the nodes that can be given work at present. What other nodes would change is asked of another state."""
    settings, usable = state.settings, membership.usable(state)
    asked = settings.stages
    most = max(asked, settings.most_stages)
    # Beyond what the job asks for only those count that need not stay spare; with peers nobody waits as a spare.
    if len(usable) > asked and settings.pipelines == 1:
        most = min(most, max(asked, len(usable) - settings.spares))
    return Situation(
        layer_costs=cutting.costs_of(state),
        layer_parameters=state.layer_costs,
        microbatches=settings.microbatches_of_step,
        pipelines=settings.pipelines,
        most_stages=most,
        nodes=tuple(natural_order(usable)),
        copies=state.copies_wanted,
        seed_bytes_per_second=settings.seed_bytes_per_second,
        seconds_to_next_lost=settling.seconds_between_lost_nodes(state, now),
        slowness={n: state.nodes[n].pace.known for n in usable},
        zones=zones_of(state),
        step_seconds=median(state.watch.recent) if state.watch.recent else 0.0,
        bytes_per_second=min((x for n in usable if (x := state.nodes[n].bytes_per_second)), default=0.0),
        passed=tuple(sizes_of(state).passed),
        budget=budget_of(state),
        by_value=settings.by_value,
        prices=prices_of(state),
        samples=settings.samples_per_step,
        whole_pipelines=settings.whole_pipelines,
    )

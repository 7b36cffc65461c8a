"""What a step sends between zones, who is apart, and what the crossing costs. Pure, with the reason in words."""

# Per step, between nodes that are known to be in different zones:
#
#     activations    over each boundary between two stages, of every pipeline: each microbatch's activation there, and
#                    its gradient back
#     gradients      of each stage's parameters: from every owner to the owners that add up (each a part), and the sums
#                    from these to every other holder
#
# An owner whose pipelines make several blocks of the tree sends more; what seeding sends is not of a step.

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from culm.coordinator.node_prices import FREE, NO_PRICES, NodePrice, Prices
from culm.coordinator.replicas import by_bucket
from culm.coordinator.zones import GRADIENT_BYTES, Zones, apart, in_several_zones, several
from culm.pipeline.plan import StagePlan, Stages

MOST_LISTED = 12  # of a thousand stages the first few tell enough


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What decides how large the tensors of a step are, by layer."""

    parameters: Sequence[float]
    # Bytes of a step that a pipeline sends over a boundary behind the layer, one way; empty: nobody knows.
    passed: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What a step sends between zones under a placement.

    ``boundaries`` of ``all_boundaries`` between stages, of every pipeline, are crossed by every microbatch's activation
    and its gradient, in sum ``activation_bytes``, where it is known how large these are; ``gradient_bytes`` of
    parameter gradients go to copies in other zones. ``together``: stages whose copies share a zone, for all that is
    known.
    """

    boundaries: int
    all_boundaries: int
    gradient_bytes: int
    activation_bytes: int
    dollars: float  # 0.0: it costs nothing, for all that is known
    together: tuple[int, ...]


def crossing(stages: Stages, zones: Zones, sizes: StepBytes, prices: Prices = NO_PRICES) -> Crossing:
    """Counts what crosses."""
    boundaries, activations, gradients, dollars = 0, 0.0, 0.0, 0.0
    for stage, following in pairwise(stages):
        sent = sizes.passed[stage.end_layer - 1] if sizes.passed else 0.0
        for (one, other), count in Counter(zip(stage.owners, following.owners, strict=True)).items():
            if apart(zones, one, other):
                boundaries += count
                activations += 2 * count * sent
                here, there = prices.get(one, FREE), prices.get(other, FREE)
                near, far = (0.0, count * sent) if here.is_far_from(there) else (count * sent, 0.0)
                dollars += here.of_bytes(near, far) + there.of_bytes(near, far)
    for stage in stages:
        of_stage, cost = _of_gradients(stage, zones, sizes.parameters, prices)
        gradients += of_stage
        dollars += cost
    return Crossing(
        boundaries=boundaries,
        all_boundaries=len(stages[0].owners) * (len(stages) - 1),
        gradient_bytes=round(gradients),
        activation_bytes=round(activations),
        dollars=dollars,
        together=tuple(s for s, stage in enumerate(stages) if not _is_apart(stage, zones)),
    )


def _is_apart(stage: StagePlan, zones: Zones) -> bool:
    """Whether no single outage takes all copies of the stage, as far as zones are known; or it has one copy only."""
    if len(stage.distinct_owners) > 1:
        return in_several_zones(stage.holders(), zones)
    return not stage.standbys or any(apart(zones, stage.owner, b.node) for b in stage.standbys)


@dataclass(slots=True)
class _Part:
    """What a zone, or a region, has of one stage."""

    owners: int = 0
    holders: int = 0
    added_up: float = 0.0  # bytes of the stage's gradient that its reducers add up

    def crossed(self, whole: "_Part") -> float:
        """What it sends to the rest of ``whole``: parts of what is added up there, and sums to the holders there."""
        return self.owners * (whole.added_up - self.added_up) + self.added_up * (whole.holders - self.holders)


def _of_gradients(stage: StagePlan, zones: Zones, parameters: Sequence[float], prices: Prices) -> tuple[float, float]:
    """Bytes of parameter gradients of the stage that cross, and their price."""
    # Sums over zones in place of pairs of nodes: with a thousand owners there are a million pairs.
    of_zone: dict[str, _Part] = {}
    of_region: dict[str, _Part] = {}
    whole, known = _Part(), _Part()
    price_of: dict[str, NodePrice] = {}
    added_up: dict[str, float] = {}
    sizes = by_bucket(parameters[stage.first_layer : stage.end_layer], stage.buckets.counts)
    for reducer, size in zip(stage.reducers, sizes, strict=True):
        added_up[reducer] = added_up.get(reducer, 0.0) + GRADIENT_BYTES * size
    owners = set(stage.distinct_owners)
    for node in stage.holders():
        zone, price = zones.get(node, ""), prices.get(node, FREE)
        if not zone:
            continue
        price_of.setdefault(zone, price)
        parts = [whole, of_zone.setdefault(zone, _Part())]
        if price.region:
            parts += [known, of_region.setdefault(price.region, _Part())]
        for part in parts:
            part.owners += node in owners
            part.holders += 1
            part.added_up += added_up.get(node, 0.0)
    sent, dollars = 0.0, 0.0
    for zone, part in of_zone.items():
        price = price_of[zone]
        size = part.crossed(whole)
        far = part.crossed(known) - part.crossed(of_region[price.region]) if price.region else 0.0
        sent += size
        dollars += price.of_bytes(size - far, far)
    return sent, dollars


def in_words(stages: Stages, zones: Zones, sizes: StepBytes, prices: Prices = NO_PRICES) -> str:
    """Who is apart and what that costs, for the reason of a placement; empty where there is one zone."""
    if not several({n: zones.get(n, "") for stage in stages for n in stage.holders()}):
        return ""
    counted = crossing(stages, zones, sizes, prices)
    sends = f"between zones a step sends {counted.gradient_bytes / 1e6:.1f} MB of parameter gradients"
    if counted.all_boundaries:
        sends += f", and activations at {counted.boundaries} of {counted.all_boundaries} boundaries"
    if counted.activation_bytes:
        sends += f" ({counted.activation_bytes / 1e6:.1f} MB)"
    price = f"that costs {counted.dollars:.3g} $ a step" if counted.dollars else ""
    if price and counted.boundaries and not counted.activation_bytes:
        price += " without the activations, whose size is not known"
    return "; ".join(filter(None, [_apart_in_words(stages, zones, counted.together), sends, price]))


def listed(stages: Sequence[int]) -> str:
    """Stages by number, the first few of many."""
    more = len(stages) - MOST_LISTED
    return ", ".join(map(str, stages[:MOST_LISTED])) + (f" and {more} more" if more > 0 else "")


def _apart_in_words(stages: Stages, zones: Zones, together: Sequence[int]) -> str:
    if any(len(stage.distinct_owners) > 1 for stage in stages):
        rows = list(dict.fromkeys(zip(*(stage.owners for stage in stages), strict=True)))
        within = sum(len({zones.get(node, "") for node in row}) == 1 for row in rows)
        lie = f"; {within} of {len(rows)} replicas lie in one zone each" if len(stages) > 1 else ""
        if together:
            return f"all copies may be in one zone at these stages: {listed(together)}{lie}"
        return f"the copies of every stage are in two zones or more{lie}"
    if together:
        return f"owner and standby may be in one zone at these stages: {listed(together)}"
    if any(stage.standbys for stage in stages):
        return "every standby is in another zone than its stage's owner"
    return "stages of one zone follow one another"

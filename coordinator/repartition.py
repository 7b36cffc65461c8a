"""Another shape for the nodes there are: when it pays, and which. Pure, with a reason in words."""

# A new shape has to earn what moving costs, in the time that is likely left until the next node is lost and the shape
# changes anyhow:
#
#     saved = gain * seconds until the next lost node
#     spent = SLOWDOWN * seconds that the moved state needs (``moving``)
#
# A move that is not over when the next node is lost may be in vain: the shape to be may need that node. So where moving
# to all nodes takes longer a shape of the present owners and half of the others is looked for, then of a fourth, and so
# on. The rest follows with the next moves.
#
# Units cancel: what is to be least (``step_cost``) is relative, so the gain is a fraction, and seconds come from the
# link and from how often nodes are lost. The gain is what is left of it if measures are off by a tenth, in whichever
# direction speaks against the change. So measures that vary move nothing, and no two shapes follow each other in turn.

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from culm.coordinator import replicas, shapes
from culm.coordinator.crossing import crossing, in_words, listed
from culm.coordinator.moving import SLOWDOWN, given
from culm.coordinator.node_prices import per_second
from culm.coordinator.remembering import remembering
from culm.coordinator.shapes import Shape
from culm.coordinator.step_cost import Estimate, Rates, Situation, estimate, least_cost, noisy_rates, rates
from culm.coordinator.zone_places import most_apart
from culm.coordinator.zones import in_several_zones, in_turns, several
from culm.pipeline.counting import STEPS, counted, of_chunks
from culm.pipeline.plan import Stages

# A gain below this is within what the estimate cannot tell: it knows nothing of transfer, caches or other guests.
WORTHWHILE = 0.05
# Nodes in all shapes that are laid out for one decision, those of the best bounds first: a commit waits for it.
MOST_PLACES = 8_000


def propose(stages: Stages, situation: Situation) -> tuple[Stages, str] | None:
    """A better shape than the present one and why it pays, or None.

    Nodes keep the stages that they hold, as far as they can, so that most layers stay where they are. Where no shape is
    better the present one may be laid out anew, so that the owners of its stages are in several zones.
    """
    order = list(dict.fromkeys([*(owner for stage in stages for owner in stage.distinct_owners), *situation.nodes]))
    there = set(situation.nodes)
    order = [name for name in order if name in there]
    if not order or not min(situation.most_stages, len(situation.layer_costs)):
        return None
    return _better(order, stages, situation) or _apart_again(order, stages, situation)


def _better(order: Sequence[str], stages: Stages, situation: Situation) -> tuple[Stages, str] | None:
    """A shape whose steps are shorter, or cheaper, by so much that moving pays."""
    present = estimate(stages, situation)
    nominal = rates(present, situation)
    if not nominal.total(present):  # layers that cost nothing: no shape is better than another
        return None
    if nominal.total(present) * (1.0 - WORTHWHILE) < least_cost(order, situation):
        return None  # to cut in vain at every commit takes longer the more stages there are
    found = _in_time(order, stages, situation, nominal)
    if found is None:
        return None
    better = found.stages
    if _who_owns_what(better) == _who_owns_what(stages):  # standbys alone differ, and those are others' to decide
        return None
    after = estimate(better, situation)
    gain = min(1.0 - off.total(after) / off.total(present) for off in noisy_rates(present, situation))
    if gain < WORTHWHILE:
        return None
    move = _move(better, stages, situation)
    saved, spent = gain * situation.seconds_to_next_lost, SLOWDOWN * move.seconds
    if saved <= spent:
        return None
    shorter = 1.0 - nominal.length(after) / nominal.length(present)
    step = "an epoch" if situation.whole_pipelines else "a step"
    takes = f"{step} takes {100 * shorter:.0f} % less"
    if nominal.of_dollar:
        cheaper = 1.0 - nominal.total(after) / nominal.total(present)
        takes = f"{step} costs {100 * cheaper:.0f} % less, and takes {100 * abs(shorter):.0f} % "
        takes += "less" if shorter >= 0.0 else "more"
    words = [
        f"{shape_in_words(better, situation)} in place of {shape_in_words(stages, situation)}: {takes}, "
        f"which saves {saved:.0f} s until the next node is expected to be lost",
        f"moving {move.size / 1e6:.0f} MB costs {spent:.1f} s",
        found.too_large,
        in_words(better, situation.zones, situation.sizes, situation.prices),
        _price_in_words(better, stages, situation, nominal),
    ]
    return better, "; ".join(filter(None, words))


def _who_owns_what(stages: Stages) -> list[tuple[range, tuple[str, ...]]]:
    return [(stage.layers, stage.owners) for stage in stages]


def _apart_again(order: Sequence[str], stages: Stages, situation: Situation) -> tuple[Stages, str] | None:
    """As many replicas of the same stages, whose owners a single outage does not take together any more.

    Lost nodes leave them so, or nodes of another zone come later. Every such move keeps more stages apart, so moves
    come to an end.
    """
    rows = max(len(stage.distinct_owners) for stage in stages)
    if not situation.whole_pipelines:
        rows = min(rows, replicas.count(len(order), len(stages), situation.pipelines))
    if rows == 1 or not several({n: situation.zones.get(n, "") for n in order}):
        return None
    zones = Counter(situation.zones.get(n, "") for n in order)
    in_one = [s for s, stage in enumerate(stages) if not in_several_zones(stage.distinct_owners, situation.zones)]
    most = len(stages) if situation.whole_pipelines else most_apart(zones, len(stages))
    if len(stages) - len(in_one) >= most:
        return None
    ranges = tuple((stage.first_layer, stage.end_layer) for stage in stages)
    laid = shapes.laid_out(Shape(rows, ranges, Estimate(0.0)), order, stages, situation)
    move = _move(laid, stages, situation)
    present = estimate(stages, situation)
    nominal = rates(present, situation)
    worse = nominal.total(estimate(laid, situation)) > nominal.total(present) * (1.0 + WORTHWHILE)
    if worse or move.seconds >= situation.seconds_to_next_lost:
        return None
    if situation.budget.too_small(laid, stages):
        return None
    words = [
        f"owners move, since one zone has all those of these {_parts(situation)}: {listed(in_one)}",
        f"moving {move.size / 1e6:.0f} MB takes {move.seconds:.1f} s",
        in_words(laid, situation.zones, situation.sizes, situation.prices),
    ]
    return laid, "; ".join(words)


@dataclass(frozen=True, slots=True)
class _Move:
    """What nodes are seeded with for another shape: bytes, and the seconds until they have it."""

    size: float
    seconds: float


def _move(better: Stages, before: Stages, situation: Situation) -> _Move:
    by_giver = given(better, before, situation.layer_parameters)
    most = max(by_giver.values(), default=0.0)
    return _Move(sum(by_giver.values()), most / situation.seed_bytes_per_second)


@dataclass(frozen=True, slots=True)
class _Found:
    stages: Stages
    too_large: str  # a better shape, and why it is not taken; empty: there is none


def _in_time(order: Sequence[str], stages: Stages, situation: Situation, nominal: Rates) -> _Found | None:
    """The best shape of all nodes, or of so many that state moves to them before the next one is likely lost."""
    owners = {owner for stage in stages for owner in stage.distinct_owners}
    kept = [name for name in order if name in owners]
    others = in_turns((name for name in order if name not in owners), situation.zones)
    count = len(others)
    asked = replace(situation, seconds_to_next_lost=0.0)  # the best shape is the best however long it lasts
    found = _best(tuple(order), stages, asked, nominal)
    while found and _move(found.stages, stages, situation).seconds > situation.seconds_to_next_lost and count > 1:
        count //= 2
        taken = {*kept, *others[:count]}
        fewer = replace(asked, nodes=tuple(name for name in situation.nodes if name in taken))
        found = _best(tuple(name for name in order if name in taken), stages, fewer, nominal)
    return found


# A look is taken at every commit, and most find what the one before found.
@remembering(answers=4)
def _best(order: tuple[str, ...], before: Stages, situation: Situation, nominal: Rates) -> _Found | None:
    """The best shape that fits the memory, beside what is held until then; and of a better one why it does not."""
    best: Stages = ()
    least = float("inf")
    small: list[tuple[float, str]] = []  # shapes that do not fit: what they would take, and the reason
    places = 0
    for shape in _most_promising(shapes.of_nodes(len(order), situation), nominal):
        if nominal.total(shape.bound) > least or places > MOST_PLACES:
            break
        if small and not shape.fits(situation):
            continue
        laid = shapes.laid_out(shape, order, before, situation)
        places += sum(len(stage.distinct_owners) for stage in laid)
        takes = nominal.total(estimate(laid, situation))
        if takes >= least:
            continue
        lacking = situation.budget.too_small(laid, before)
        if lacking:
            better = "cheaper" if nominal.of_dollar else "faster"
            what = f"{shape_in_words(laid, situation)} would be {better} and does not fit"
            small.append((takes, f"{what}: {situation.budget.in_words(lacking, laid, before)}"))
        else:
            best, least = laid, takes
    # Of equals the first one was tried first: the one with more stages.
    too_large = min((each for each in small if each[0] <= least), default=None)
    return _Found(best, too_large[1] if too_large is not None else "") if best else None


def _most_promising(found: Iterable[Shape], nominal: Rates) -> list[Shape]:
    """The best bound first; of equals more stages, which hold less each."""
    return sorted(found, key=lambda shape: (nominal.total(shape.bound), -len(shape.ranges), -shape.replicas))


def _parts(situation: Situation) -> str:
    return f"{of_chunks(situation.pipelines).part if situation.whole_pipelines else STEPS.part}s"


def shape_in_words(stages: Stages, situation: Situation) -> str:
    rows = max(len(stage.distinct_owners) for stage in stages)
    if situation.whole_pipelines:
        return counted(rows, of_chunks(situation.pipelines).node)
    stages_in_words = f"{len(stages)} stage{'s' * (len(stages) != 1)}"
    return f"{rows} replicas of {stages_in_words}" if rows > 1 else stages_in_words


def _price_in_words(better: Stages, before: Stages, situation: Situation, nominal: Rates) -> str:
    """What a step costs, and cost before; empty while it is not known."""
    paid = per_second(situation.prices)
    if not paid or not nominal.of_second:
        return ""
    costs = []
    for stages in (better, before):
        seconds = nominal.length(estimate(stages, situation)) / nominal.of_second
        crosses = crossing(stages, situation.zones, situation.sizes, situation.prices).dollars
        costs.append(seconds * paid + crosses)
    priced = sum(price.per_hour > 0.0 for price in situation.prices.values())
    nodes = f"all {priced} nodes paid" if priced == len(situation.prices) else f"{priced} nodes paid, others free"
    step = "an epoch" if situation.whole_pipelines else "a step"
    text = f"{step} costs {costs[0]:.3g} $ in place of {costs[1]:.3g}, {nodes}"
    if situation.samples and not situation.whole_pipelines:
        text += f": {1e6 * costs[0] / situation.samples:.3g} $ for a million samples"
    return text

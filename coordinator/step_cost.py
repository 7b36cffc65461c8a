"""What a step takes under a shape, and what it costs: estimates by which shapes are compared. Pure."""

# A step's length is estimated as what 1F1B takes: the first microbatch passes all stages, and the busiest node then
# works through the others. Then gradients cross links: the more replicas, the more bytes. All is in units of cost, the
# unit of the layers' costs, whatever that is. What else counts is turned into that unit:
#
#     a byte       that the busiest sender sends, once steps have been timed and links measured
#     a dollar     for what crosses zones, where the job asks for value, and prices are known
#
# Every node that attends is paid for, whether it has work or not. So a second costs the same under every shape, and the
# fewest dollars for a step are the fewest of
#
#     dollars a second of all nodes * seconds of the step + dollars for what the step sends between zones
#
# which is the step's length, and what crosses zones as if it took the time that its price buys.

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from culm.coordinator.crossing import StepBytes, crossing
from culm.coordinator.gradient_bytes import most_sent
from culm.coordinator.memory import UNBOUND, Budget
from culm.coordinator.node_prices import Prices, per_second
from culm.coordinator.zones import Zones
from culm.pipeline.plan import Stages

# Of a step, at least: a link that was slow for a moment must not make all of the step the link's.
LEAST_COMPUTING = 0.1
# By so much a measure may be off, or change from one look to the next, without a new shape.
NOISE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the choice of a shape depends on. ``slowness``: seconds for the same cost, against the fastest node."""

    layer_costs: tuple[float, ...]  # in any unit: seconds, or parameters
    layer_parameters: tuple[float, ...]  # they decide what moving costs
    microbatches: int  # of a step, all pipelines together
    pipelines: int
    most_stages: int
    nodes: tuple[str, ...]  # that can be given work, in the order in which they are to be used
    copies: int
    seed_bytes_per_second: float
    seconds_to_next_lost: float
    slowness: Mapping[str, float]
    zones: Zones = field(default_factory=dict)
    passed: tuple[float, ...] = ()  # of each layer, as in ``crossing.StepBytes``; empty: not known
    # What a step takes under the present shape, in seconds, and the slowest link. Without either sending costs nothing.
    step_seconds: float = 0.0
    bytes_per_second: float = 0.0
    budget: Budget = UNBOUND  # of the nodes' memory
    by_value: bool = False  # whether the fewest dollars for a step are asked for, in place of the shortest step
    prices: Prices = field(default_factory=dict)  # of every node that attends
    samples: int = 0  # of a step; 0: not known
    whole_pipelines: bool = False  # a node runs all stages of its pipelines, and every layer is a stage

    @property
    def sizes(self) -> StepBytes:
        return StepBytes(self.layer_parameters, self.passed)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a step under one shape."""

    computing: float  # in units of cost
    sent: float = 0.0  # bytes of gradients, by the node that sends most
    dollars: float = 0.0  # for what crosses zones; 0.0 where nobody asks


@dataclass(frozen=True, slots=True)
class Rates:
    """What counts beside computing, in units of cost. Nothing while it is not known."""

    of_byte: float = 0.0
    of_dollar: float = 0.0  # 0.0 as well where the job asks for speed
    of_second: float = 0.0

    def total(self, estimate: Estimate) -> float:
        """What is to be least."""
        return self.length(estimate) + self.of_dollar * estimate.dollars

    def length(self, estimate: Estimate) -> float:
        """Of the step, in units of cost."""
        return estimate.computing + self.of_byte * estimate.sent


def estimate(stages: Stages, situation: Situation) -> Estimate:
    """Of stages on their nodes; what nobody asks for is left at 0.0."""
    dollars = 0.0
    if situation.by_value and situation.prices:
        dollars = crossing(stages, situation.zones, situation.sizes, situation.prices).dollars
    sent = most_sent(stages, situation.layer_parameters) if situation.bytes_per_second else 0.0
    return Estimate(step_cost(stages, situation), sent, dollars)


def rates(present: Estimate, situation: Situation, off: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Rates:
    """From what the present step takes: what is left of it beside the time of its gradients is for computing.

    ``off``: by which factors the time of a step, the slowest link and prices are taken to be off.
    """
    seconds, link = situation.step_seconds * off[0], situation.bytes_per_second * off[1]
    if not seconds:
        return Rates()
    sending = present.sent / link if link else 0.0
    of_second = present.computing / max(seconds - sending, LEAST_COMPUTING * seconds)
    paid = per_second(situation.prices) * off[2] if situation.by_value else 0.0
    return Rates(of_second / link if link else 0.0, of_second / paid if paid else 0.0, of_second)


def noisy_rates(present: Estimate, situation: Situation) -> Iterator[Rates]:
    """As measures may really be. Between these lie all rates with measures that are off by NOISE at most."""
    ends = (1.0 - NOISE, 1.0 + NOISE)
    for off in product(ends, ends, ends):
        yield rates(present, situation, off)


def step_cost(stages: Stages, situation: Situation) -> float:
    """A step's length without its gradients: the busiest node works through all its microbatches, one passes all."""
    work: dict[str, float] = {}  # in a step
    each: dict[str, float] = {}  # of the microbatch that passes: it is in the sum over all stages
    total = 0.0
    microbatches = situation.microbatches / situation.pipelines
    for stage in stages:
        cost = sum(situation.layer_costs[x] for x in stage.layers)
        slowest = 0.0
        for owner, pipelines in Counter(stage.owners).items():
            slowness = situation.slowness.get(owner, 1.0)
            slowest = max(slowest, slowness)
            work[owner] = work.get(owner, 0.0) + cost * slowness * microbatches * pipelines
            each[owner] = each.get(owner, 0.0) + cost * slowness
        total += cost * slowest
    return max(work[owner] - each[owner] for owner in work) + total


def least_cost(owners: Sequence[str], situation: Situation) -> float:
    """What no shape of these nodes falls short of: layers that could be divided among them at will, but for one."""
    slowness = [situation.slowness.get(name, 1.0) for name in owners]
    total, fastest = sum(situation.layer_costs), min(slowness)
    if situation.pipelines > 1:  # a layer may be on every node, and no microbatch has to pass from one to another
        return situation.microbatches * total / sum(1.0 / x for x in slowness)
    slowness = slowness[: min(len(owners), situation.most_stages, len(situation.layer_costs))]
    busiest = max(total / sum(1.0 / x for x in slowness), min(slowness) * max(situation.layer_costs))
    return (situation.microbatches - 1) * busiest + fastest * total

"""What to rent and how to run: every way is simulated over the same random markets, and the best one is named."""

# A job of one pipeline runs a stage on every machine that is no spare. One of several pipelines has a shape, replicas x
# stages, and the coordinator makes as many replicas as the machines give: so a way names the stages, and the replicas
# follow. For each number of replicas the most stages are tried, which leave the fewest machines over. With one replica
# machines may be left over on purpose, as spares; replicas are each other's copies.
#
# A way is what the run begins with. The coordinator changes the shape as it sees fit, up to as many stages.

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, quantiles

from culm.coordinator.crossing import StepBytes, in_words
from culm.coordinator.node_prices import NodePrice
from culm.coordinator.placement import place
from culm.coordinator.replicas import count as replicas_of
from culm.pipeline.plan import Stages
from culm.simulator.markets.account import Row, Use
from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.job_profile import Cluster, Profile
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change

DAY = 86400.0
SPARES = (0, 1, 2)
REDUNDANCIES = ("off", "lazy", "eager", "auto")
CHECKPOINT_SECONDS = (300.0, 1800.0)
SHORT_LIST = 16  # ways at least that are held against all markets, and a quarter of those that are tried
GIVEN_UP = 10.0  # a run that takes so many times as long as without lost nodes, and a day, counts as not done

Draw = Callable[[int], list[Change]]  # the market of a seed


@dataclass(frozen=True, slots=True)
class Way:
    """How the job could be run."""

    machines: int
    stages: int
    redundancy: str
    checkpoint_steps: int  # 0: none, where the job is done before the first
    replicas: int = 1

    @property
    def spares(self) -> int:
        return self.machines - self.replicas * self.stages

    @property
    def shape(self) -> str:
        """In words."""
        stages = f"{self.stages} stage{'s' * (self.stages != 1)}"
        return f"{self.replicas} replicas of {stages}" if self.replicas > 1 else stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A way over all seeds: means, and from the 10th to the 90th percentile. Time in days, cost in dollars."""

    way: Way
    done: float  # share of the markets in which the job ended in time
    samples_per_second: float  # from the first step's beginning on
    days: float
    days_range: tuple[float, float]
    cost: float
    cost_range: tuple[float, float]
    rollbacks: float  # of a run
    rollback_risk: float  # share of the runs with any
    useful: float  # share of the wall time
    markets: int  # it was held against


def ways(profile: Profile, machines: Iterable[int]) -> list[Way]:
    """All that are tried."""
    found = []
    for count in sorted(set(machines)):
        for replicas, stages in _shapes(profile, count):
            redundancies = REDUNDANCIES if count > 1 else ("off",)
            each = product(redundancies, _checkpoint_steps(profile, replicas, stages))
            found += [Way(count, stages, redundancy, every, replicas) for redundancy, every in each]
    return found


def _shapes(profile: Profile, machines: int) -> list[tuple[int, int]]:
    """Replicas and stages."""
    most = len(profile.layers)
    alone = [(1, machines - spares) for spares in SPARES if 1 <= machines - spares <= most]
    # Several pipelines run on as many machines as there are; one runs a stage on each, and needs layers for them.
    if profile.pipelines == 1:
        return alone
    found = {stages: None for _, stages in alone}
    found |= {min(most, machines // replicas): None for replicas in range(1, min(profile.pipelines, machines) + 1)}
    return [(replicas_of(machines, stages, profile.pipelines), stages) for stages in found]


def _checkpoint_steps(profile: Profile, replicas: int, stages: int) -> list[int]:
    """How many steps may lie between two checkpoints."""
    step = replace(profile, most_stages=stages).least_step_seconds(replicas)
    intervals = sorted({max(1, round(seconds / step)) for seconds in CHECKPOINT_SECONDS})
    return [every for every in intervals if every < profile.steps] or [0]


def longest(profile: Profile, cluster: Cluster, tried: Sequence[Way]) -> float:
    """Seconds after which a run of the slowest way is given up."""
    work = sum(layer.forward + layer.backward for layer in profile.layers)
    microbatches = profile.pipelines * profile.microbatches  # on one replica, if the others are lost
    steps = ((microbatches + way.stages - 1) * work / way.stages for way in tried)
    return GIVEN_UP * profile.steps * (max(steps) + cluster.commit_seconds) + DAY


def simulate(profile: Profile, cluster: Cluster, way: Way, changes: Sequence[Change], seconds: float) -> Row:
    """One way over one market; at most so long."""
    cut = replace(profile, stages=way.stages, most_stages=way.stages)
    # Replicas are there from the beginning where the market has the machines then.
    here = min(way.machines, sum(change.kind == "add" and change.at == 0.0 for change in changes))
    choice = Choice(
        redundancy=way.redundancy,
        machines=way.machines,
        begins_with=max(way.stages, here) if way.replicas > 1 else 0,
        checkpoint_steps=way.checkpoint_steps,
    )
    return CulmRun(changes, cut, cluster, choice).run(seconds)


@dataclass(frozen=True, slots=True)
class Placed:
    """How the first machines of a market are laid out, as the coordinator would do it."""

    stages: Stages  # empty: too few machines come
    zones: Mapping[str, str]

    def layers_in_words(self, profile: Profile) -> str:
        """Which layers each stage has."""
        ranges = (
            f"{x.first_layer}-{x.end_layer - 1}" if len(x.layers) > 1 else f"{x.first_layer}" for x in self.stages
        )
        by = "times" if profile.measured else "parameters"
        return f"layers {', '.join(ranges)}, cut by {by}" if self.stages else ""

    def zones_in_words(self, profile: Profile, cluster: Cluster) -> str:
        """Who is apart, and what crosses; empty where all are in one zone."""
        price = NodePrice(per_gb_zones=cluster.per_gb_between_zones)
        return in_words(self.stages, self.zones, _sizes(profile), dict.fromkeys(self.zones, price))


def placed(profile: Profile, way: Way, changes: Sequence[Change]) -> Placed:
    """The machines that are there first, as many as the way takes."""
    coming = [change for change in changes if change.kind == "add"][: way.machines]
    zones = {change.node: change.zone for change in coming}
    if len(coming) < way.stages:
        return Placed((), zones)
    stages = place(
        list(zones),
        profile.layer_seconds or profile.parameters,
        way.stages,
        copies=1 if way.redundancy == "off" else 2,
        zones=zones,
        pipelines=profile.pipelines,
        parameters=profile.parameters,
        passed=_sizes(profile).passed,
    )
    return Placed(stages, zones)


def _sizes(profile: Profile) -> StepBytes:
    passed = tuple(float(profile.microbatches * layer.activation_bytes) for layer in profile.layers)
    return StepBytes(profile.parameters, passed if any(passed) else ())


def outlook(way: Way, rows: Sequence[Row], steps: int) -> Outlook:
    """What the runs of one way, a row a seed, come to."""
    days = [row.seconds / DAY for row in rows]
    costs = [row.cost for row in rows]
    return Outlook(
        way=way,
        done=mean(row.steps >= steps for row in rows),
        samples_per_second=mean(row.throughput for row in rows),
        days=mean(days),
        days_range=_range(days),
        cost=mean(costs),
        cost_range=_range(costs),
        rollbacks=mean(row.fatal for row in rows),
        rollback_risk=mean(row.fatal > 0 for row in rows),
        useful=mean(row.spent[Use.USEFUL] / row.seconds if row.seconds else 0.0 for row in rows),
        markets=len(rows),
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    tenths = quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def best(found: Sequence[Outlook], deadline_days: float | None = None) -> Outlook | None:
    """The cheapest that is done within the deadline; without one, where dollars times days are fewest.

    None if no way ends in every market. Of equals the one with the fewest machines.
    """
    sure = [x for x in found if x.done == 1.0 and (deadline_days is None or x.days_range[1] <= deadline_days)]
    return min(sure, key=lambda x: _worth(x, deadline_days), default=None)


def _worth(x: Outlook, deadline_days: float | None) -> tuple[float, int]:
    return (x.cost * x.days if deadline_days is None else x.cost), x.way.machines


def short_list(found: Sequence[Outlook], deadline_days: float | None = None) -> list[Way]:
    """After a few markets: the ways that are worth more of them, and those that the best is to be compared with."""
    order = sorted(
        found,
        key=lambda x: (-x.done, deadline_days is not None and x.days > deadline_days, _worth(x, deadline_days)),
    )
    kept = {x.way for x in order[: max(SHORT_LIST, len(order) // 4)]}
    kept |= {x.way for _, x in _others(order[0], found)}
    return [x.way for x in found if x.way in kept]


def why(chosen: Outlook, found: Sequence[Outlook]) -> list[str]:
    """Against the nearest other ways, in words: what a change of one setting would bring."""
    return [f"{change}: {_against(other, chosen)}" for change, other in _others(chosen, found)]


def _others(chosen: Outlook, found: Sequence[Outlook]) -> list[tuple[str, Outlook]]:
    """The ways next to one, and what is changed."""
    way, changes = chosen.way, []
    others = {x.way: x for x in found if x is not chosen}
    for redundancy in REDUNDANCIES:
        other = others.get(replace(way, redundancy=redundancy))
        if other is not None:
            changes.append((f"redundancy {redundancy}", other))
    neighbours = sorted({x.way.machines for x in found})
    at = neighbours.index(way.machines)
    for count in neighbours[max(0, at - 1) : at] + neighbours[at + 1 : at + 2]:
        same = [x for x in found if x.way.machines == count and x.way.redundancy == way.redundancy]
        nearest = min(same, key=lambda x: x.cost * x.days, default=None)
        if nearest is not None:
            changes.append((f"{count} machines", nearest))
    shapes: dict[int, Outlook] = {}  # by stages: of the same machines, with as many steps between checkpoints if tried
    for x in found:
        if replace(x.way, stages=0, replicas=0, checkpoint_steps=0) == replace(
            way, stages=0, replicas=0, checkpoint_steps=0
        ):
            shapes[x.way.stages] = min(shapes.get(x.way.stages, x), x, key=lambda x: _unlike(x, way))
    fewer, more = (sorted(n for n in shapes if (n < way.stages) == less and n != way.stages) for less in (True, False))
    for stages in reversed([*fewer[-2:], *more[:2]]):
        other = shapes[stages]
        alone = way.replicas == other.way.replicas == 1
        changes.append((f"{other.way.spares} spare(s)" if alone else other.way.shape, other))
    return changes


def _unlike(x: Outlook, way: Way) -> tuple[bool, float]:
    return x.way.checkpoint_steps != way.checkpoint_steps, x.cost * x.days


def _against(other: Outlook, chosen: Outlook) -> str:
    if other.done < 1.0:
        return f"does not end in {100 * (1 - other.done):.0f} % of the markets"
    days, dollars = other.days / chosen.days - 1.0, other.cost / chosen.cost - 1.0
    return f"{days:+.1%} time, {dollars:+.1%} cost, {other.rollbacks:.1f} rollbacks a run"

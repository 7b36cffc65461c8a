"""What to rent and how to run: ways are simulated over the same random markets, and the best one is named."""

# ``ways`` has all of them, ``first_guess`` the few dozen that are simulated here.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, quantiles

from culm.coordinator.crossing import in_words
from culm.coordinator.node_prices import NodePrice
from culm.pipeline.plan import Stages
from culm.simulator.markets.account import Row, Use
from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.first_guess import Conditions
from culm.simulator.markets.job_profile import Cluster, Profile
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change
from culm.simulator.markets.ways import SETTINGS, Way, apart, laid_out, step_bytes

DAY = 86400.0
SHORT_LIST = 16  # ways at least that are held against all markets, and a quarter of those that are simulated
GIVEN_UP = 10.0  # a run that takes so many times as long as without lost nodes, and a day, counts as not done

Draw = Callable[[int, Way], list[Change]]  # the market of a seed, as the way sees it: its machines, in its zones


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


def longest(conditions: Conditions, tried: Sequence[Way]) -> float:
    """Seconds after which a run of the slowest way is given up."""
    profile = conditions.profile
    work = sum(layer.forward + layer.backward for layer in profile.layers) / min(x.speed for x in conditions.kinds)
    microbatches = profile.pipelines * profile.microbatches  # on one replica, if the others are lost
    steps = ((microbatches + way.stages - 1) * work / way.stages for way in tried)
    return GIVEN_UP * profile.steps * (max(steps) + conditions.cluster.commit_seconds) + DAY


def simulate(conditions: Conditions, way: Way, changes: Sequence[Change], seconds: float) -> Row:
    """One way over one market; at most so long."""
    return CulmRun(changes, conditions.profile_of(way), conditions.cluster_of(way), choice_of(way, changes)).run(
        seconds
    )


def choice_of(way: Way, changes: Sequence[Change]) -> Choice:
    """As the way has it, in this market."""
    # Replicas are there from the beginning where the market has the machines then.
    here = min(way.machines, sum(change.kind == "add" and change.at == 0.0 for change in changes))
    return Choice(
        redundancy=way.redundancy,
        copies=way.copies,
        machines=way.machines,
        begins_with=max(way.stages, here) if way.replicas > 1 else 0,
        checkpoint_steps=way.checkpoint_steps,
    )


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
        return in_words(self.stages, self.zones, step_bytes(profile), dict.fromkeys(self.zones, price))


def placed(profile: Profile, way: Way, changes: Sequence[Change]) -> Placed:
    """The machines that are there first, as many as the way takes."""
    coming = [change for change in changes if change.kind == "add"][: way.machines]
    zones = {change.node: change.zone for change in coming}
    return Placed(laid_out(profile, way, zones) if len(coming) >= way.stages else (), zones)


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

    None if no way ends in every market. Of equals the one with the fewest days, and then with the fewest machines.
    """
    sure = [x for x in found if x.done == 1.0 and not _is_late(x, deadline_days)]
    return min(sure, key=lambda x: _worth(x, deadline_days), default=None)


def next_best(found: Sequence[Outlook], chosen: Outlook, deadline_days: float | None = None) -> Outlook | None:
    """The best that differs in more than the interval between checkpoints."""
    return best([x for x in found if apart(x.way, chosen.way) not in ([], ["checkpoints"])], deadline_days)


def _is_late(x: Outlook, deadline_days: float | None) -> bool:
    """Whether fewer than nine of ten markets end by the deadline."""
    return deadline_days is not None and x.days_range[1] > deadline_days


def _worth(x: Outlook, deadline_days: float | None = None) -> tuple[float, float, int]:
    """What is to be least. Machines of one's own may cost nothing: then days alone count."""
    return (x.cost * x.days if deadline_days is None else x.cost), x.days, x.way.machines


def in_order(found: Sequence[Outlook], deadline_days: float | None = None) -> list[Outlook]:
    """The best first; those that do not always end, or not in time, last."""
    return sorted(
        found,
        key=lambda x: (-x.done, _is_late(x, deadline_days), _worth(x, deadline_days)),
    )


def short_list(found: Sequence[Outlook], deadline_days: float | None = None) -> list[Way]:
    """After a few markets: the ways that are worth more of them, and those that the best is to be compared with."""
    order = in_order(found, deadline_days)
    kept = {x.way for x in order[: max(SHORT_LIST, len(order) // 4)]}
    kept |= {x.way for _, x in others(order[0], found)}
    return [x.way for x in found if x.way in kept]


def why(chosen: Outlook, found: Sequence[Outlook]) -> list[str]:
    """Against the nearest other ways, in words: what a change of one setting would bring."""
    return [f"{change}: {against(other, chosen)}" for change, other in others(chosen, found)]


def others(chosen: Outlook, found: Sequence[Outlook]) -> list[tuple[str, Outlook]]:
    """The best of the ways that differ in one setting, for each of its values; of numbers the nearest ones."""
    changes = []
    for name, said in SETTINGS.items():
        values: dict[str, Outlook] = {}
        for x in found:
            if apart(x.way, chosen.way) == [name]:
                better = values.get(said(x.way), x)
                values[said(x.way)] = min(better, x, key=_worth)
        nearest = list(values.items())
        if name in _NUMBERS:
            number = _NUMBERS[name]
            fewer = [x for x in nearest if number(x[1].way) < number(chosen.way)]
            more = [x for x in nearest if number(x[1].way) >= number(chosen.way)]
            by_number = partial(_by, number)
            nearest = [*sorted(fewer, key=by_number)[-2:], *sorted(more, key=by_number)[:2]]
        changes += nearest
    return changes


_NUMBERS: Mapping[str, Callable[[Way], int]] = {
    "machines": lambda way: way.machines,
    "shape": lambda way: way.stages,
    "checkpoints": lambda way: way.checkpoint_steps,
}


def _by(number: Callable[[Way], int], x: tuple[str, Outlook]) -> int:
    return number(x[1].way)


def against(other: Outlook, chosen: Outlook) -> str:
    """What the other one takes and costs more, or less."""
    if other.done < 1.0:
        return f"does not end in {100 * (1 - other.done):.0f} % of the markets"
    days, dollars = other.days / chosen.days - 1.0, other.cost / chosen.cost - 1.0 if chosen.cost else 0.0
    return f"{days:+.1%} time, {dollars:+.1%} cost, {other.rollbacks:.1f} rollbacks a run"

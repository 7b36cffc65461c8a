"""Which of many ways are worth a simulation: what each would take and cost, by a formula. Pure."""

# The formula leaves out how losses fall together with each other and with what is being repaired; simulated runs have
# that. It only has to put the good ways among the first few dozen.
#
#     a step       its timetable, the share of standbys, and what the way adds at commits (``at_commits``)
#     slower       while more machines are missing than there are spares: half the speed with one replica, one replica
#                  less with several. How long that is, draws of the market tell.
#     redone       half of a stage's work for every lost node, with "eager" and "auto" half of its backwards
#     rolled back  machines that go before a copy is seeded anew count as one bulk, which takes all k copies of some
#                  stage as ``copies.risk`` has it; if its machines are in one zone and copies are in several, never.
#                  It costs half of what lies between two checkpoints, and the load.
#
# Between two checkpoints lies the time at which copying state for them costs as much as rollbacks do (Young, 1974):
# sqrt(2 * copying / rollbacks a second), within bounds. A third of that and three times as much are tried as well.

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from culm.coordinator.copies import risk
from culm.coordinator.moving import STATE_BYTES
from culm.pipeline.plan import Stages
from culm.simulator.markets.at_commits import at_commit, calm_step, copying, writers
from culm.simulator.markets.job_profile import Cluster, Profile
from culm.simulator.markets.trace import Change, at_most
from culm.simulator.markets.ways import SETTINGS, SPARES, Kind, Way, apart, fits, laid_out

HOUR = 3600.0
LEAST_INTERVAL, MOST_INTERVAL = 60.0, 3600.0  # between two checkpoints: storages bill requests, and nobody foresees all
TRIED = (1.0, 1 / 3, 3.0)  # times the interval that the formula has
MOST_LOST = 0.95  # share of the time
# Ways that are simulated: so many of the best guesses, and for each setting up to so many values, so that the plan can
# say what another value would cost.
SIMULATED, VALUES = 40, 6


@dataclass(frozen=True)
class Rates:
    """What a market is like for whoever rents so many machines in it."""

    hours: float
    dollars_per_hour: float  # of all that are rented, in the mean
    lost: tuple[tuple[float, str], ...]  # machines: when, in which zone; ascending
    short: tuple[float, ...]  # share of the time in which more than so many are missing, by ``SPARES``

    def bulks(self, within: float) -> list[tuple[int, int]]:
        """Machines that went at most so many seconds one after the other: how many, and in how many zones."""
        found: list[tuple[int, set[str]]] = []
        last = -float("inf")
        for at, zone in self.lost:
            count, zones = found.pop() if at - last <= within else (0, set())
            found.append((count + 1, zones | {zone}))
            last = at
        return [(count, len(zones)) for count, zones in found]


def rates_of(changes: Sequence[Change], machines: int, seconds: float, per_hour: float) -> Rates:
    """``per_hour``: dollars, of a machine of which the market does not say it."""
    here: dict[str, float] = {}
    lost: list[tuple[float, str]] = []
    paid, now = 0.0, 0.0
    short = [0.0] * len(SPARES)
    end = Change(at=seconds, kind="notice", node="")
    for change in [*at_most((c for c in changes if c.at < seconds), machines), end]:
        passed, now = change.at - now, change.at
        paid += sum(here.values()) * passed / HOUR
        for i, spares in enumerate(SPARES):
            short[i] += passed * (machines - len(here) > spares)
        if change.kind == "add":
            here[change.node] = per_hour if change.price is None else change.price
        elif change.kind == "remove":
            del here[change.node]
            lost.append((change.at, change.zone))
    hours = seconds / HOUR
    return Rates(hours, paid / hours, tuple(lost), tuple(x / seconds for x in short))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    way: Way
    seconds: float
    dollars: float
    rollbacks: float  # of a run

    def worth(self, deadline_seconds: float | None) -> tuple[bool, float, float, int]:
        """What is to be least. Machines of one's own may cost nothing: then time alone counts."""
        if deadline_seconds is None:
            return False, self.dollars * self.seconds, self.seconds, self.way.machines
        return self.seconds > deadline_seconds, self.dollars, self.seconds, self.way.machines


@dataclass(frozen=True)
class Conditions:
    """What every way has in common. ``zones``: names, empty where nobody knows them."""

    profile: Profile
    cluster: Cluster
    kinds: tuple[Kind, ...] = (Kind(),)
    zones: tuple[str, ...] = ()
    audit: float = 0.0  # the share of forwards that the job has run again

    def kind(self, way: Way) -> Kind:
        return next(kind for kind in self.kinds if kind.name == way.kind)

    def profile_of(self, way: Way) -> Profile:
        """Of the job on the way's machines, cut as the way has it."""
        return replace(self.kind(way).profile(self.profile), stages=way.stages, most_stages=way.stages)

    def stages_of(self, way: Way) -> Stages:
        """Laid out on machines that come from the way's zones in turn."""
        zones = way.zones or self.zones or ("",)
        return laid_out(self.profile_of(way), way, {f"m{i}": zones[i % len(zones)] for i in range(way.machines)})

    def cluster_of(self, way: Way) -> Cluster:
        """With what a commit takes the way."""
        own = replace(self.cluster, per_hour=self.kind(way).prices[0])
        more = at_commit(self.profile_of(way), way, self.stages_of(way), own, self.audit).total
        return replace(own, commit_seconds=own.commit_seconds + more)

    def fitting(self, tried: Sequence[Way]) -> list[Way]:
        """Those that the devices' memory holds."""
        return [x for x in tried if fits(self.profile_of(x), x, self.kind(x), self.stages_of(x))]


def with_checkpoints(conditions: Conditions, way: Way, rates: Rates) -> list[Guess]:
    """The way with each interval between checkpoints that is tried, the formula's own first."""
    profile, stages = conditions.profile_of(way), conditions.stages_of(way)
    cluster = conditions.cluster_of(way)
    step = calm_step(profile, stages, cluster).seconds
    share = {"off": 0.0, "lazy": cluster.lazy_share}.get(way.redundancy, cluster.eager_share)
    step += step * share + cluster.commit_seconds
    layers = profile.state_bytes / STATE_BYTES / way.stages  # parameters of a stage
    seeding = cluster.detect_seconds + STATE_BYTES * layers / cluster.seed_bytes_per_second
    rollbacks = _rollbacks(conditions, way, rates, seeding)  # a second
    written = profile.state_bytes / writers(stages) / cluster.storage_bytes_per_second
    interval = sqrt(2 * copying(profile, stages) / rollbacks) if rollbacks else MOST_INTERVAL
    found: list[Guess] = []
    for times in TRIED:
        seconds = min(max(times * interval, LEAST_INTERVAL, written), MOST_INTERVAL)
        every = max(1, round(seconds / step))
        tried = replace(way, checkpoint_steps=every if every < profile.steps else 0)
        if tried not in (x.way for x in found):
            found.append(_guess(conditions, tried, rates, step, rollbacks, cluster))
    return found


def _guess(conditions: Conditions, way: Way, rates: Rates, step: float, rollbacks: float, cluster: Cluster) -> Guess:
    profile, stages = conditions.profile_of(way), conditions.stages_of(way)
    every = way.checkpoint_steps
    step += copying(profile, stages) / every if every else 0.0
    whole = profile.steps * step
    again = (every * step if every else whole) / 2
    again += profile.state_bytes / way.stages / cluster.storage_bytes_per_second
    redone = {"off": 0.0, "lazy": 0.5}.get(way.redundancy, 1 / 3) * step + cluster.detect_seconds
    lost = len(rates.lost) / (rates.hours * HOUR)
    slower = 0.5 if way.replicas == 1 else 1.0 / way.replicas
    speed = 1.0 - slower * rates.short[min(way.spares, len(rates.short) - 1)]
    speed *= 1.0 - min(MOST_LOST, rollbacks * again + lost * redone)
    seconds = cluster.starts_up + whole / speed
    zones = way.zones or conditions.zones
    nodes = {f"m{i}": zones[i % len(zones)] if zones else "" for i in range(way.machines)}
    traffic = profile.bytes_between_zones(stages, nodes) / 1e9 * cluster.per_gb_between_zones * profile.steps
    dollars = seconds / HOUR * rates.dollars_per_hour + traffic
    return Guess(way=way, seconds=seconds, dollars=dollars, rollbacks=rollbacks * seconds)


def _rollbacks(conditions: Conditions, way: Way, rates: Rates, seeding: float) -> float:
    """A second."""
    in_several = way.copies > 1 and len(way.zones or conditions.zones) > 1
    found = 0.0
    for count, zones in rates.bulks(seeding if way.copies > 1 else 0.0):
        if not (in_several and zones == 1):
            found += risk(count, way.copies, way.machines, way.stages)
    return found / (rates.hours * HOUR)


def short_list(guesses: Sequence[Guess], deadline_seconds: float | None = None) -> list[Way]:
    """The ways that are worth a simulation: the best, and the best with each value of every setting."""
    order = _in_order(guesses, deadline_seconds)
    kept = dict.fromkeys(order[:SIMULATED])
    for name, said in SETTINGS.items():
        if name != "checkpoints":
            kept |= dict.fromkeys(list(_first_by(said, order))[:VALUES])
    return list(kept)


def next_to(way: Way, guesses: Sequence[Guess], deadline_seconds: float | None = None) -> list[Way]:
    """The ways that differ from one in one setting, the best with each value."""
    order = _in_order(guesses, deadline_seconds)
    found: list[Way] = []
    for name, said in SETTINGS.items():
        found += list(_first_by(said, [x for x in order if apart(x, way) == [name]]))[:VALUES]
    return found


def _in_order(guesses: Sequence[Guess], deadline_seconds: float | None) -> list[Way]:
    return [x.way for x in sorted(guesses, key=lambda x: x.worth(deadline_seconds))]


def _first_by(said: Callable[[Way], str], order: Sequence[Way]) -> Iterable[Way]:
    best: dict[str, Way] = {}
    for way in order:
        best.setdefault(said(way), way)
    return best.values()

"""The ways in which a job could be run: all settings that ``culm plan`` chooses, together. Pure."""

# A job of one pipeline runs a stage on every machine that is no spare. One of several pipelines has a shape, replicas x
# stages, and the coordinator makes as many replicas as the machines give: so a way names the stages, and the replicas
# follow. For each number of replicas the most stages are tried, which leave the fewest machines over. With one replica
# machines may be left over on purpose, as spares; replicas are each other's copies.
#
# A way is what the run begins with. The coordinator changes the shape as it sees fit, up to as many stages.

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from culm.coordinator.crossing import StepBytes
from culm.coordinator.memory import Budget
from culm.coordinator.moving import STATE_BYTES
from culm.coordinator.placement import place
from culm.coordinator.replicas import count as replicas_of
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.plan import Stages
from culm.simulator.markets.job_profile import Profile
from culm.simulator.markets.workload import GRADIENT_BYTES

SPARES = (0, 1, 2)
REDUNDANCIES = ("off", "lazy", "eager", "auto")
COPIES = (2, 3)
MOST_ZONES_ALONE = 8  # of more zones none is tried alone: each would be as many ways again


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of machine that could be rented. Prices and hazards: one for all zones, or one for each."""

    name: str = ""  # empty: the only one, of which the profile is
    speed: float = 1.0  # in ratio to the profile's machine
    memory_bytes: int = 0  # of the device that computes; 0: not known
    prices: tuple[float, ...] = (0.0,)  # dollars an hour
    hazards: tuple[float, ...] = ()  # how often an hour a machine is lost; empty: as the trace has it

    def profile(self, profile: Profile) -> Profile:
        """Of the job on these machines."""
        if self.speed == 1.0:
            return profile
        faster = ((x, x.forward / self.speed, x.backward / self.speed) for x in profile.layers)
        return replace(profile, layers=tuple(replace(x, forward=f, backward=b) for x, f, b in faster))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the job could be run."""

    machines: int
    stages: int
    redundancy: str
    checkpoint_steps: int = 0  # 0: none, where the job is done before the first
    replicas: int = 1
    copies: int = 2  # of every stage; 1 with redundancy "off"
    standby: str = "device"  # where a standby's state lies: "device" or "host"
    kind: str = ""  # of machine
    zones: tuple[str, ...] = ()  # in which they are rented; empty: in all

    @property
    def spares(self) -> int:
        return self.machines - self.replicas * self.stages

    @property
    def shape(self) -> str:
        """In words."""
        stages = f"{self.stages} stage{'s' * (self.stages != 1)}"
        return f"{self.replicas} replicas of {stages}" if self.replicas > 1 else stages

    @property
    def copies_in_words(self) -> str:
        """How many there are of every stage, and where they lie."""
        if self.redundancy == "off":
            return "one copy of every stage"
        if self.replicas >= self.copies:
            return f"{self.replicas} copies of every stage, those of its replicas"
        where = "the host's memory of" if self.standby == "host" else "the device of"
        return f"{self.copies} copies of every stage, standbys on {where} its neighbours"


# The settings by which ways differ, each with what it is called.
SETTINGS: Mapping[str, Callable[[Way], str]] = {
    "kind": lambda way: way.kind,
    "machines": lambda way: f"{way.machines} machines",
    "zones": lambda way: f"only in {', '.join(way.zones)}" if way.zones else "in all zones",
    "shape": lambda way: way.shape if way.replicas > 1 else f"{way.shape}, {way.spares} spare(s)",
    "redundancy": lambda way: f"redundancy {way.redundancy}",
    "copies": lambda way: f"copies {way.copies}",
    "standby": lambda way: f"standbys in {way.standby} memory",
    "checkpoints": lambda way: f"checkpoints every {way.checkpoint_steps} steps",
}


def apart(one: Way, other: Way) -> list[str]:
    """The settings in which two ways differ, but for those that follow from another one."""
    found = [name for name, said in SETTINGS.items() if said(one) != said(other)]
    if "redundancy" in found and "off" in (one.redundancy, other.redundancy):
        found = [name for name in found if name not in ("copies", "standby")]
    if "machines" in found:
        found = [name for name in found if name != "shape"]
    # The interval follows from how often a run goes back, and so from everything else.
    return [name for name in found if name != "checkpoints"] or found


def ways(
    profile: Profile,
    machines: Iterable[int],
    kinds: Sequence[Kind] = (Kind(),),
    zones: Sequence[str] = (),
    accelerated: bool = False,
) -> list[Way]:
    """All that are weighed, without checkpoints. ``accelerated``: devices have a memory of their own."""
    alone = [(zone,) for zone in zones] if 1 < len(zones) <= MOST_ZONES_ALONE else []
    found = []
    for kind, where, count in product(kinds, [(), *alone], sorted(set(machines))):
        for replicas, stages in _shapes(profile, count):
            for redundancy, copies, standby in _redundancies(count, replicas, accelerated):
                found.append(
                    Way(
                        machines=count,
                        stages=stages,
                        redundancy=redundancy,
                        replicas=replicas,
                        copies=copies,
                        standby=standby,
                        kind=kind.name,
                        zones=where,
                    )
                )
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


def _redundancies(machines: int, replicas: int, accelerated: bool) -> list[tuple[str, int, str]]:
    """Redundancy, copies and where standbys lie."""
    found = [("off", 1, "device")]
    if machines == 1:
        return found
    for redundancy, copies in product(REDUNDANCIES[1:], COPIES):
        # Of three replicas or more the stage has three copies anyhow.
        if copies > machines or (copies > COPIES[0] and replicas >= copies):
            continue
        stands_by = replicas < copies
        found += [
            (redundancy, copies, place) for place in (("device", "host") if stands_by and accelerated else ("device",))
        ]
    return found


def laid_out(profile: Profile, way: Way, zones: Mapping[str, str]) -> Stages:
    """The first placement on these nodes, as the coordinator has it. ``zones``: of every node, by name."""
    return place(
        list(zones),
        profile.layer_seconds or profile.parameters,
        way.stages,
        copies=way.copies,
        zones=zones,
        pipelines=profile.pipelines,
        parameters=profile.parameters,
        passed=step_bytes(profile).passed,
    )


def step_bytes(profile: Profile) -> StepBytes:
    passed = tuple(float(profile.microbatches * layer.activation_bytes) for layer in profile.layers)
    return StepBytes(profile.parameters, passed if any(passed) else ())


def fits(profile: Profile, way: Way, kind: Kind, stages: Stages) -> bool:
    """Whether what a plan asks of each node's device lies in its memory, as far as both are known."""
    if not kind.memory_bytes:
        return True
    layers = profile.layer_bytes or tuple(
        LayerBytes(STATE_BYTES * x.parameters, GRADIENT_BYTES * x.parameters) for x in profile.layers
    )
    nodes = {node for stage in stages for node in stage.holders()}
    budget = Budget(
        layers=layers,
        microbatches=profile.microbatches,
        told=dict.fromkeys(nodes, kind.memory_bytes),
        hosted=way.standby == "host",
    )
    return not budget.too_small(stages)


def settings_of(way: Way) -> list[str]:
    """The job's keys, as ``--set`` takes them."""
    found = [f"pipeline.stages={way.stages}", f"pipeline.most_stages={way.stages}"]
    found.append(f"resilience.redundancy={way.redundancy}")
    found += ["resilience.audit=0.0"] if way.redundancy == "off" else []
    found.append(f"resilience.copies={max(way.copies, COPIES[0])}")
    found.append(f"resilience.standby={way.standby}")
    return [*found, f"checkpoint.every={way.checkpoint_steps}"] if way.checkpoint_steps else found

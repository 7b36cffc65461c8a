"""Seconds that a way's settings add to every step at its commit, beyond the step's timetable. Pure."""

# The timetable ends with the last backward. The commit waits for more than that:
#
#     copies        every hot standby has the whole reduced gradient. A stage's owner sends it layer by layer, from the
#                   last layer of its last backward on, to one standby after another. What is still under way when the
#                   step's last backward ends lengthens the step. (Of several replicas ``grid_step.summing`` has it.)
#     host memory   a standby's layers come to the device and go back, for each optimizer step
#     audits        forwards that are run again, and the digest of all state, as far as bubbles do not hold them
#     checkpoints   one in so many steps copies the state that it writes. The writing itself is beside the steps.
#
# The three rates are measured: docs/performance.md.

from collections.abc import Mapping
from dataclasses import dataclass

from culm.coordinator.moving import STATE_BYTES
from culm.pipeline.plan import Stages
from culm.simulator.markets.grid_step import GridStep
from culm.simulator.markets.job_profile import Cluster, Profile
from culm.simulator.markets.step_time import Step, StepRun, calm
from culm.simulator.markets.ways import Way
from culm.simulator.markets.workload import GRADIENT_BYTES

COPIED = 2.5e9  # bytes of state a second, for a checkpoint whose step commits before it is written
DIGESTED = 2e10  # bytes of state a second
HOSTED = 5.8e-10  # seconds a parameter, by which a standby's step in the host's memory takes longer than on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class AtCommit:
    """Seconds of every step."""

    copies: float = 0.0
    host: float = 0.0
    audits: float = 0.0
    checkpoints: float = 0.0

    @property
    def total(self) -> float:
        return self.copies + self.host + self.audits + self.checkpoints


def calm_step(profile: Profile, stages: Stages, cluster: Cluster) -> Step:
    """The step's timetable under these stages. Not to be changed."""
    if profile.pipelines > 1:
        return GridStep(stages, profile.grid_work(stages, cluster))
    owners = [stage.owner for stage in stages]
    place = {name: i for i, name in enumerate(dict.fromkeys(owners))}
    return calm(tuple(place[name] for name in owners), profile.schedule, profile.durations(stages, cluster))


def at_commit(profile: Profile, way: Way, stages: Stages, cluster: Cluster, audit: float = 0.0) -> AtCommit:
    """``stages``: laid out as ``way`` has it; ``audit``: the share of forwards that is run again."""
    step = calm_step(profile, stages, cluster)
    stood_by = _stood_by(profile, stages)
    return AtCommit(
        copies=_copies(profile, stages, step, cluster) if isinstance(step, StepRun) else 0.0,
        host=HOSTED * max(stood_by.values(), default=0) if way.standby == "host" else 0.0,
        audits=_audits(profile, stages, step, audit) if audit and way.redundancy != "off" else 0.0,
        checkpoints=copying(profile, stages) / way.checkpoint_steps if way.checkpoint_steps else 0.0,
    )


def writers(stages: Stages) -> int:
    """Nodes that write a checkpoint, a part each."""
    return len(stages) * min(len(stage.distinct_owners) for stage in stages)


def copying(profile: Profile, stages: Stages) -> float:
    """Seconds for the copy of what one node writes of a checkpoint."""
    return profile.state_bytes / writers(stages) / COPIED


def _parameters(profile: Profile, layers: range) -> int:
    return sum(profile.layers[x].parameters for x in layers)


def _stood_by(profile: Profile, stages: Stages) -> Mapping[str, int]:
    """Parameters that each node only stands by for."""
    found: dict[str, int] = {}
    for stage in stages:
        for standby in stage.standbys:
            found[standby.node] = found.get(standby.node, 0) + _parameters(profile, stage.layers)
    return found


def _copies(profile: Profile, stages: Stages, step: StepRun, cluster: Cluster) -> float:
    late = 0.0
    ends: dict[int, float] = {}
    for instruction, end in step.ended.items():
        ends[instruction.stage] = max(end, ends.get(instruction.stage, 0.0))
    for s, stage in enumerate(stages):
        each = len(stage.standbys) * GRADIENT_BYTES / cluster.bytes_per_second  # seconds a parameter
        layers = [profile.layers[x] for x in stage.layers]
        begun = ends[s] - sum(layer.backward for layer in layers[:-1])  # the last layer's gradient is there
        sent = max(begun + each * _parameters(profile, stage.layers), ends[s] + each * layers[0].parameters)
        late = max(late, sent - step.seconds)
    return late


def _audits(profile: Profile, stages: Stages, step: Step, audit: float) -> float:
    """Of the node whose bubbles hold least of them. Each node audits about as much as it is audited."""
    held: dict[str, int] = {}
    for stage in stages:
        for node in stage.holders():
            held[node] = held.get(node, 0) + _parameters(profile, stage.layers)
    late = 0.0
    for owner in {owner for stage in stages for owner in stage.owners}:
        times = step.times(owner)
        asked = audit * times.forward + STATE_BYTES * held[owner] / DIGESTED
        late = max(late, asked - times.bubble)
    return late

"""How a run is set up, and how long its steps are under a plan while nothing happens."""

from dataclasses import dataclass
from typing import NamedTuple

from culm.coordinator.moving import SLOWDOWN
from culm.pipeline.plan import Plan, Stages
from culm.simulator.markets.grid_step import GridStep
from culm.simulator.markets.job_profile import Cluster, Profile
from culm.simulator.markets.step_time import Step, calm


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a run is set up."""

    redundancy: str = "lazy"  # off | lazy | eager | auto
    ship_every: int = 0
    copies: int = 2  # of every stage, the owner's among them
    chooses_copies: bool = False  # whether they become more where nodes are lost in bulk: [resilience] copies = "auto"
    machines: int = 0  # rented at most; 0: as many as stages may be, and two spares
    begins_with: int = 0  # nodes that the run waits for before it begins; 0: one for each stage
    checkpoint_steps: int = 0  # 0: none
    settle_seconds: float = 30.0
    passes_over: bool = True  # calm steps are passed over; without it each one is decided: slower, and the same row


class Lengths(NamedTuple):
    """Seconds of a step, by what they are spent on."""

    useful: float = 0.0
    redundancy: float = 0.0
    seeding: float = 0.0


class StepTimes:
    """How long the steps of one run are. What redundancy and seeding add are measured shares of the useful time."""

    def __init__(self, profile: Profile, cluster: Cluster, choice: Choice) -> None:
        self._profile, self._cluster, self._choice = profile, cluster, choice
        self._stages: Stages = ()  # that were asked for last, and their step
        self._calm: Step | None = None

    def calm_step(self, plan: Plan) -> Step:
        """Not to be changed: it is the same for all plans whose stages share nodes alike."""
        if self._calm is None or plan.stages is not self._stages:
            self._stages, self._calm = plan.stages, self._calm_step(plan)
        return self._calm

    def _calm_step(self, plan: Plan) -> Step:
        if self._profile.pipelines > 1:
            return GridStep(plan.stages, self._profile.grid_work(plan.stages, self._cluster))
        owners = [stage.owner for stage in plan.stages]
        place = {name: i for i, name in enumerate(dict.fromkeys(owners))}
        durations = self._profile.durations(plan.stages, self._cluster)
        return calm(tuple(place[name] for name in owners), self._profile.schedule, durations)

    def lengths(self, plan: Plan, seeds: bool) -> Lengths:
        """``seeds``: state is moving meanwhile."""
        useful = self.calm_step(plan).seconds + self._cluster.commit_seconds
        share = 0.0
        # Where every stage has several owners they are its copies: nobody stands by. Where one has none but standbys,
        # their bytes are in the sum, and the share comes on top.
        if self._choice.redundancy != "off" and any(len(stage.distinct_owners) == 1 for stage in plan.stages):
            share = self._cluster.eager_share if self._eager(plan) else self._cluster.lazy_share
        return Lengths(useful, useful * share, useful * SLOWDOWN if seeds else 0.0)

    def traffic(self, plan: Plan) -> float:
        """Dollars that a step's tensors between zones cost."""
        price = self._cluster.per_gb_between_zones
        if not price:
            return 0.0
        zones = {name: member.zone for name, member in plan.members.items()}
        return self._profile.bytes_between_zones(plan.stages, zones) / 1e9 * price

    def ahead(self, plan: Plan) -> float:
        """The share of lost forwards that an heir had run in its bubbles."""
        return self.calm_step(plan).room_for_forwards() if self._eager(plan) else 0.0

    def ships(self, plan: Plan) -> int:
        """After how many microbatches gradients are with the standby; 0: only when they are whole."""
        return plan.redundancy.ship_every if plan.redundancy is not None else self._choice.ship_every

    def _eager(self, plan: Plan) -> bool:
        return plan.redundancy.eager if plan.redundancy is not None else self._choice.redundancy == "eager"

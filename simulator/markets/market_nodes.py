"""The nodes of a simulated run: which layers each holds, where its time went, and what it would report of both."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from culm.coordinator import reports
from culm.pipeline.plan import Plan
from culm.pipeline.times import TimeSplit
from culm.simulator.markets.seeding_time import Part
from culm.simulator.markets.step_time import Step


@dataclass(eq=False, kw_only=True)
class MarketNode:
    """One incarnation of a node, on a machine of the trace."""

    incarnation: int
    zone: str
    # Invariant: at the committed version. A simulated node applies a commit in no time, so a layer is held or is not.
    held: set[int] = field(default_factory=set)
    times: TimeSplit = field(default_factory=TimeSplit)  # counted under redundancy "auto" only: nobody else asks


class HeldPart(NamedTuple):
    node: str
    stage: int  # of the present plan
    layers: range


class MarketNodes:
    """The nodes that attend, by name. It knows neither time nor machines."""

    def __init__(self) -> None:
        self.here: dict[str, MarketNode] = {}
        self._incarnations = 0
        # Asked at the end of every step, of which most are like the one before. None: it may have changed since.
        self._held_parts: tuple[Plan, list[HeldPart]] | None = None

    def add(self, name: str, zone: str) -> MarketNode:
        """A process starts under this name, and holds nothing (rule 13)."""
        self._incarnations += 1
        node = self.here[name] = MarketNode(incarnation=self._incarnations, zone=zone)
        return node

    def remove(self, name: str) -> MarketNode | None:
        """None: it does not attend."""
        self._held_parts = None
        return self.here.pop(name, None)

    def find(self, name: str, incarnation: int) -> MarketNode | None:
        node = self.here.get(name)
        return node if node is not None and node.incarnation == incarnation else None

    # ---- what they hold ---------------------------------------------------------------------------------------------

    def restore(self, plan: Plan) -> None:
        """An era begins: every node holds what the plan names for it, from the origin."""
        self._held_parts = None
        for name, node in self.here.items():
            node.held = set(plan.layers_of(name))

    def keep(self, plan: Plan) -> None:
        """What a plan no longer names is dropped."""
        self._held_parts = None
        for name, node in self.here.items():
            if node.held:
                node.held &= plan.layers_of(name)

    def held(self) -> Mapping[str, set[int]]:
        return {name: node.held for name, node in self.here.items()}

    def seeded(self, part: Part) -> None:
        self._held_parts = None
        self.here[part.node].held |= set(range(part.first_layer, part.end_layer))

    # ---- what they report -------------------------------------------------------------------------------------------

    def spend(self, step: Step, steps: int) -> None:
        """So many steps went by: where each node's time went."""
        for name, node in self.here.items():
            spent = step.times(name)
            node.times = TimeSplit(
                forward=node.times.forward + steps * spent.forward,
                backward=node.times.backward + steps * spent.backward,
                bubble=node.times.bubble + steps * spent.bubble,
            )

    def heartbeats(self, now: float, bytes_per_second: float, names: Collection[str] | None = None) -> reports.Heard:
        """One of every node, or of these."""
        beats = (
            reports.Heartbeat(
                node=name, incarnation=node.incarnation, times=node.times, bytes_per_second=bytes_per_second
            )
            for name, node in self.here.items()
            if names is None or name in names
        )
        return reports.Heard(tuple((now, beat) for beat in beats))

    def held_parts(self, plan: Plan) -> list[HeldPart]:
        """Of what the plan names for each node those parts that it holds whole."""
        if self._held_parts is None or self._held_parts[0] is not plan:
            found = [
                HeldPart(name, s, layers)
                for name, node in self.here.items()
                if node.held
                for s, layers in plan.parts_of(name)
                if node.held.issuperset(layers)
            ]
            self._held_parts = plan, found
        return self._held_parts[1]

    def ready(self, part: HeldPart, plan: Plan, step: int, era: int) -> reports.Ready:
        """What its holder reports at the end of a step. Gradients are made up: zeros, which clip nothing."""
        return reports.Ready(
            node=part.node,
            incarnation=self.here[part.node].incarnation,
            era=era,
            step=step,
            stage=part.stage,
            first_layer=part.layers.start,
            squared_norms=(0.0,) * len(part.layers),
            tallies=(0.0,) * plan.pipelines,
        )

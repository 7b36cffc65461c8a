"""State on its way to new holders: what a plan asks for, and when it is there."""

from collections.abc import Mapping
from typing import NamedTuple

from culm.coordinator.moving import STATE_BYTES
from culm.pipeline.plan import Plan
from culm.simulator.markets.job_profile import Cluster, Profile

# Every plan says anew who is to hold what. What moves already goes on if it is still asked for; the rest is given up.
# What is new begins at once. A giver has one rate for all that it seeds, one part after another: the second part of a
# plan arrives after the first. Parts of other givers, or of a plan before, do not slow it down. A stage's only copy is
# given as fast as the link goes.
#
# Every byte that began to move has arrived, was given up, or is on its way: ``check`` counts them.


class Way(NamedTuple):
    """State that is moving."""

    arrives: float  # when
    size: int  # bytes


class Part(NamedTuple):
    """Layers that a node is being seeded with, up to ``end_layer`` (exclusive)."""

    node: str
    first_layer: int
    end_layer: int


class Asked(NamedTuple):
    giver: str
    part: Part
    at_once: bool = False  # the giver's copy is the only one


def asked(plan: Plan) -> list[Asked]:
    """Who is to give what to whom under a plan: standbys that are not hot, and holders of stages to be.

    Of several holders all ask the first one, as nodes do (``stage_server.worker.holdings``).
    """
    parts = [
        Asked(stage.owners[0], Part(b.node, stage.first_layer, stage.end_layer), at_once=len(stage.required()) == 1)
        for stage in plan.stages
        for b in stage.standbys
        if not b.hot
    ]
    for stage in plan.target:
        giver = next(s.owners[0] for s in plan.stages if stage.first_layer in s.layers)
        parts += [Asked(giver, Part(node, stage.first_layer, stage.end_layer)) for node in stage.holders()]
    found: dict[Part, Asked] = {}
    for each in parts:
        found.setdefault(each.part, each)
    return list(found.values())


class Moving:
    """What is on its way under the present plan; it counts every byte."""

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self._profile, self._cluster = profile, cluster
        self._under_way: dict[Part, Way] = {}
        self.begun = self.arrived = self.given_up = 0  # bytes

    def adopt(self, plan: Plan, held: Mapping[str, set[int]], now: float) -> list[tuple[Part, float]]:
        """Begins what a plan asks for, gives up what it does not. Returns the new parts, and when they are there."""
        busy: dict[str, float] = {}  # seconds, by giver
        before, self._under_way = self._under_way, {}
        begun = []
        for giver, part, at_once in asked(plan):
            if part in before:
                self._under_way[part] = before.pop(part)
            elif part.node in held:
                lacking = [x for x in range(part.first_layer, part.end_layer) if x not in held[part.node]]
                size = STATE_BYTES * sum(self._profile.layers[x].parameters for x in lacking)
                rate = self._cluster.bytes_per_second if at_once else self._cluster.seed_bytes_per_second
                busy[giver] = busy.get(giver, 0.0) + size / rate
                arrives = now + busy[giver]
                self._under_way[part] = Way(arrives, size)
                self.begun += size
                begun.append((part, arrives))
        self.given_up += sum(way.size for way in before.values())
        return begun

    def give_up(self) -> None:
        """Everything under way: an era ends."""
        self.given_up += sum(way.size for way in self._under_way.values())
        self._under_way.clear()

    def arrive(self, part: Part, now: float) -> bool:
        """Whether the part is there now, and still asked for."""
        way = self._under_way.get(part)
        if way is None or way.arrives > now:
            return False
        self.arrived += way.size
        self._under_way[part] = way._replace(size=0)
        return True

    def goes_on(self, now: float) -> bool:
        return any(way.arrives > now for way in self._under_way.values())

    def check(self) -> None:
        """Raises AssertionError if bytes were lost."""
        under_way = sum(way.size for way in self._under_way.values())
        gone = self.arrived + self.given_up + under_way
        assert self.begun == gone, f"{self.begun} bytes were sent, {gone} are accounted for"

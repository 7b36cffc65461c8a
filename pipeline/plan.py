"""The plan: who runs what. The only thing, besides commits, that the coordinator publishes."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any

from culm.pipeline.early_stop import EarlyStop
from culm.pipeline.instruction import Duty
from culm.pipeline.keys import BucketOfStage
from culm.pipeline.neighbours import Neighbours
from culm.pipeline.origin import Origin
from culm.pipeline.pause import Pause
from culm.pipeline.ties import Addend, Ties, addends
from culm.pipeline.turns import turns_of


@dataclass(frozen=True, slots=True)
class Member:
    """A node as the plan knows it. Another incarnation of the same node is another holder."""

    node: str
    incarnation: int
    address: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Standby:
    """A further holder of a stage. Hot: at the committed version and required for a commit; else being seeded."""

    node: str
    hot: bool


@dataclass(frozen=True, slots=True)
class Buckets:
    """Into what a stage's gradient is cut, and who adds it up: see ``culm.pipeline.buckets``."""

    counts: tuple[int, ...] = ()  # by layer: how many buckets it has; empty where each is one
    # By bucket: the owner that adds up what all of them have. Invariant: each is an owner; empty where there is one.
    reducers: tuple[str, ...] = ()


@dataclass(frozen=True)
class StagePlan:
    """One stage: layers ``first_layer`` to ``end_layer`` (exclusive), its owner in each pipeline, its standbys."""

    first_layer: int
    end_layer: int
    owners: tuple[str, ...]  # by pipeline
    standbys: tuple[Standby, ...] = ()  # invariant: none of them is an owner, and none comes twice
    buckets: Buckets = Buckets()

    @cached_property
    def layers(self) -> range:
        return range(self.first_layer, self.end_layer)

    @cached_property
    def distinct_owners(self) -> tuple[str, ...]:
        """Each owner once, in order of its first pipeline."""
        return tuple(dict.fromkeys(self.owners))

    @property
    def owner(self) -> str:
        """The stage's one owner. ValueError where its pipelines have several."""
        (owner,) = self.distinct_owners
        return owner

    @cached_property
    def _places(self) -> tuple[int, ...]:
        return tuple(accumulate(self.buckets.counts or (1,) * len(self.layers), initial=0))

    @property
    def bucket_count(self) -> int:
        """Of all its layers."""
        return self._places[-1]

    def places_of(self, layer: int) -> range:
        """A layer's buckets, counted from the stage's first one."""
        return range(self._places[layer - self.first_layer], self._places[layer - self.first_layer + 1])

    @cached_property
    def reducers(self) -> tuple[str, ...]:
        """Who adds up each of its buckets, and sends it to all other holders."""
        return self.buckets.reducers or (self.owner,) * self.bucket_count

    def run_by(self, node: str, standbys: tuple[Standby, ...]) -> "StagePlan":
        """The same layers, which this node runs in every pipeline."""
        buckets = replace(self.buckets, reducers=())
        return StagePlan(self.first_layer, self.end_layer, (node,) * len(self.owners), standbys, buckets)

    def holders(self) -> tuple[str, ...]:
        """Every node with a copy, hot or being seeded, owners first."""
        return self._holders

    @cached_property
    def _holders(self) -> tuple[str, ...]:
        # Cached: every decision asks it of every stage, and a lost node changes two or three of a thousand.
        return (*self.distinct_owners, *(s.node for s in self.standbys))

    def required(self) -> tuple[str, ...]:
        """The nodes whose readiness a commit waits for: owners and hot standbys."""
        return (*self.distinct_owners, *(s.node for s in self.standbys if s.hot))

    def hot_standby(self) -> str | None:
        return next((s.node for s in self.standbys if s.hot), None)


Stages = tuple[StagePlan, ...]


def _by_holder(stages: Stages) -> dict[str, list[int]]:
    """The stages of which each node has a copy, ascending."""
    found: dict[str, list[int]] = {}
    for s, stage in enumerate(stages):
        for node in stage.holders():
            found.setdefault(node, []).append(s)
    return found


def stages_to_lists(stages: Stages) -> list[Any]:
    """As JSON-able data: ``[[first layer, end layer, [owner, ...], [[standby, hot], ...]], ...]``."""
    return [[s.first_layer, s.end_layer, list(s.owners), [[b.node, b.hot] for b in s.standbys]] for s in stages]


def stages_from_lists(lists: list[Any]) -> Stages:
    """What ``stages_to_lists`` was made from."""
    return tuple(
        StagePlan(first, end, tuple(owners), tuple(Standby(node, hot) for node, hot in standbys))
        for first, end, owners, standbys in lists
    )


PlanOrder = tuple[int, int]  # (term, generation): the later plan has the higher one


def _no_members() -> Mapping[str, Member]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Redundancy:
    """What standbys do beyond applying every step, before a node is lost: see culm.pipeline.job.ResilienceSection."""

    eager: bool = False
    ship_every: int = 0

    def __str__(self) -> str:
        ships = f"gradients shipped every {self.ship_every}" if self.ship_every else ""
        return ", ".join(filter(None, ["eager" if self.eager else "lazy", ships]))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who runs what from ``step`` on. Ordered by (term, generation); ``era`` rises with every rollback."""

    term: int
    generation: int
    era: int
    step: int  # steps committed when the plan was made
    # Invariant: the first stage begins at layer 0, each other one where the stage before ends.
    stages: Stages
    # Invariant: every holder of a stage, also of a stage of the target, is a member.
    members: Mapping[str, Member] = field(default_factory=_no_members)
    reason: str = ""
    origin: Origin = field(default_factory=Origin)  # what the era began from; invariant: origin.step <= step
    # Stages that the plan prepares: whoever holds one there is seeded with its layers. Invariant: the same layers as in
    # ``stages``, cut otherwise.
    target: Stages = ()
    redundancy: Redundancy | None = None  # chosen at run time; None: as the job says
    # Where the run has ended before its job's last step. Invariant: early_stop.step < step.
    early_stop: EarlyStop | None = None
    pause: Pause | None = None  # set: no step is begun from ``step`` on
    leader: int = 0  # who made it: a number that each leader draws, since a term may be issued twice (rule 15)
    # Each node puts these in, since no message tells them: the model's ties; the share of forwards that are audited;
    # which chunks of a graph exchange values, where the job trains on one.
    ties: Ties = ()
    audit: float = 0.0
    neighbours: Neighbours | None = None

    def of_job(self, ties: Ties, audit: float = 0.0, neighbours: Neighbours | None = None) -> "Plan":
        """With what no message tells."""
        told = ties or audit or neighbours is not None
        return replace(self, ties=ties, audit=audit, neighbours=neighbours) if told else self

    @cached_property
    def order(self) -> PlanOrder:
        return (self.term, self.generation)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Where the model is cut: first layer and end of each stage."""
        return tuple((s.first_layer, s.end_layer) for s in self.stages)

    @cached_property
    def required_copies(self) -> int:
        """Copies of layers whose holders a commit waits for: owners' and hot standbys'."""
        return sum(len(s.layers) * len(s.required()) for s in self.stages)

    @property
    def pipelines(self) -> int:
        return len(self.stages[0].owners) if self.stages else 0

    @cached_property
    def turns(self) -> tuple[int, ...]:
        """By pipeline, when its nodes run it in a step."""
        return turns_of([stage.owners for stage in self.stages])

    def owners(self, pipeline: int) -> tuple[str, ...]:
        """Who runs each stage of a pipeline."""
        return tuple(stage.owners[pipeline] for stage in self.stages)

    def owner_of(self, duty: Duty) -> str:
        return self.stages[duty.stage].owners[duty.pipeline]

    def duties_of(self, node: str) -> tuple[Duty, ...]:
        """What the node runs, by pipeline and stage, ascending."""
        return tuple(self._duties.get(node, ()))

    @cached_property
    def _duties(self) -> dict[str, list[Duty]]:
        found: dict[str, list[Duty]] = {}
        for p in range(self.pipelines):
            for s, stage in enumerate(self.stages):
                found.setdefault(stage.owners[p], []).append(Duty(p, s))
        return found

    def owned_by(self, node: str) -> tuple[int, ...]:
        """Stages that the node owns in some pipeline, ascending."""
        return tuple(i for i, s in enumerate(self.stages) if node in s.owners)

    def standby_for(self, node: str) -> tuple[int, ...]:
        """Stages that the node stands by for, hot or being seeded, ascending."""
        return tuple(i for i, s in enumerate(self.stages) if any(b.node == node for b in s.standbys))

    def held_by(self, node: str) -> tuple[int, ...]:
        return tuple(self._held.get(node, ()))

    @cached_property
    def _held(self) -> dict[str, list[int]]:
        return _by_holder(self.stages)

    @cached_property
    def _to_hold(self) -> dict[str, list[int]]:
        return _by_holder(self.target)

    def layers_of(self, node: str) -> frozenset[int]:
        """The layers that the node holds, or is being seeded with."""
        held = [self.stages[s].layers for s in self._held.get(node, ())]
        to_hold = [self.target[t].layers for t in self._to_hold.get(node, ())]
        return frozenset(chain(*held, *to_hold))

    @cached_property
    def _first_buckets(self) -> tuple[int, ...]:
        """By stage, and the number of all."""
        return tuple(accumulate((stage.bucket_count for stage in self.stages), initial=0))

    def buckets(self, stage: int) -> range:
        """The buckets of the stage's layers. They are numbered through the model, whatever its stages are."""
        return range(self._first_buckets[stage], self._first_buckets[stage + 1])

    def buckets_of(self, stage: int, layer: int) -> range:
        """Those of one of the stage's layers."""
        first, places = self._first_buckets[stage], self.stages[stage].places_of(layer)
        return range(first + places.start, first + places.stop)

    def layer_of(self, bucket: int) -> int:
        """The layer that the bucket is of."""
        return bisect_right(self._layer_starts, bucket) - 1

    def stage_with(self, layer: int) -> int:
        """The stage that has the layer."""
        return bisect_right(self._first_layers, layer) - 1

    @cached_property
    def _first_layers(self) -> tuple[int, ...]:
        return tuple(stage.first_layer for stage in self.stages)

    def stage_of(self, bucket: int) -> int:
        """The stage that the bucket is of."""
        return bisect_right(self._first_buckets, bucket) - 1

    @cached_property
    def addends(self) -> tuple[tuple[Addend, ...], ...]:
        """By layer: the buckets that its gradient adds to. Their whole sums are what a holder applies to it."""
        return addends(self.bucket_numbers, self.ties)

    @cached_property
    def _users(self) -> Mapping[int, tuple[int, ...]]:
        """By bucket, where there are any: the later layers that add to it, ascending."""
        found: dict[int, tuple[int, ...]] = {}
        for tie in self.ties:
            for addend in self.addends[tie.layer]:
                if addend.use and self.layer_of(addend.bucket) == tie.first:
                    found[addend.bucket] = (*found.get(addend.bucket, ()), tie.layer)
        return found

    @cached_property
    def sums_of(self) -> tuple[frozenset[BucketOfStage], ...]:
        """By layer: the buckets whose whole sums are applied to it."""
        return tuple(frozenset((self.stage_of(x.bucket), x.bucket) for x in adding) for adding in self.addends)

    @cached_property
    def sums_of_stage(self) -> tuple[frozenset[BucketOfStage], ...]:
        """By stage: the same of all its layers."""
        return tuple(frozenset(chain(*(self.sums_of[layer] for layer in stage.layers))) for stage in self.stages)

    def uses_of(self, bucket: int) -> tuple[int, ...]:
        """The layers that add to the bucket, in the order in which they are added; 0 is the bucket's own."""
        return (0, *self._users.get(bucket, ()))

    def is_shared(self, bucket: int) -> bool:
        """Whether other layers than its own add to it."""
        return bucket in self._users

    def places_of(self, bucket: int) -> list[tuple[int, int]]:
        """Each layer that it is applied to, and its place among what is applied there."""
        own = self.layer_of(bucket)
        found = [(own, bucket - self._layer_starts[own])]
        for layer in self._users.get(bucket, ()):
            found.append((layer, self.addends[layer].index(Addend(bucket, layer))))
        return found

    @cached_property
    def _layer_starts(self) -> tuple[int, ...]:
        return tuple(numbers.start for numbers in self.bucket_numbers)

    @cached_property
    def bucket_numbers(self) -> tuple[range, ...]:
        """By layer of the model: the numbers of its buckets."""
        return tuple(self.buckets_of(s, layer) for s, stage in enumerate(self.stages) for layer in stage.layers)

    def reducer_of(self, stage: int, bucket: int) -> str:
        """Who adds up the bucket, of one of the stage's layers, and sends it to all other holders."""
        return self.stages[stage].reducers[bucket - self._first_buckets[stage]]

    def held_layers(self, node: str) -> list[tuple[int, int]]:
        """``(stage, layer)`` of the same, ascending."""
        mine = self.layers_of(node)
        return [(s, x) for s, stage in enumerate(self.stages) for x in stage.layers if x in mine]

    def held_buckets(self, node: str) -> list[tuple[int, int]]:
        """``(stage, bucket)`` of what is applied to these layers, each once."""
        own = [(s, bucket) for s, layer in self.held_layers(node) for bucket in self.buckets_of(s, layer)]
        if not self._users:
            return own
        used = {x.bucket for _, layer in self.held_layers(node) for x in self.addends[layer] if x.use}
        return list(dict.fromkeys((*own, *((self.stage_of(bucket), bucket) for bucket in sorted(used)))))

    def parts_of(self, node: str) -> list[tuple[int, range]]:
        """What the node reports on: ``(stage, layers)`` of stages that it holds, and its parts of stages to be."""
        held, to_hold = self._held.get(node, []), self._to_hold.get(node)
        if to_hold is None:
            return [(s, self.stages[s].layers) for s in held]
        parts = []
        for s, stage in enumerate(self.stages):
            if s in held:
                parts.append((s, stage.layers))
                continue
            for to_be in (self.target[t] for t in to_hold):
                first, end = max(stage.first_layer, to_be.first_layer), min(stage.end_layer, to_be.end_layer)
                if first < end:
                    parts.append((s, range(first, end)))
        return parts

    def receivers(self, bucket: int) -> tuple[str, ...]:
        """Every node that needs the bucket's reduced gradient, owners of its stage first."""
        found = self._receivers.get(bucket)
        if found is None:
            found = self._receivers[bucket] = self._find_receivers(bucket)
        return found

    @cached_property
    def _receivers(self) -> dict[int, tuple[str, ...]]:
        """By bucket, of those that were asked for: a step asks for each several times."""
        return {}

    def _find_receivers(self, bucket: int) -> tuple[str, ...]:
        layers = (self.layer_of(bucket), *self._users.get(bucket, ()))
        preparing = [s for s in self.target if any(layer in s.layers for layer in layers)]
        return tuple(dict.fromkeys(n for stage in (*self.stages_with(bucket), *preparing) for n in stage.holders()))

    def stages_with(self, bucket: int) -> list[StagePlan]:
        """The stages to whose layers the bucket's gradient is applied, its own first."""
        users = map(self.stage_with, self._users.get(bucket, ()))
        return [self.stages[s] for s in (self.stage_of(bucket), *users)]

    def saved_by(self, node: str) -> tuple[int, ...]:
        """What the node writes into a checkpoint: layers that it stands by for, so that their owners compute on."""
        held = [self.stages[s] for s in self.held_by(node)]
        writers = ((x, s.hot_standby() or s.reducers[s.places_of(x).start]) for s in held for x in s.layers)
        return tuple(layer for layer, writer in writers if writer == node)

    def exposed(self) -> tuple[int, ...]:
        """Stages of which there is one copy that counts."""
        return tuple(i for i, s in enumerate(self.stages) if len(s.required()) < 2)

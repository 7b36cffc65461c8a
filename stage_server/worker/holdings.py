"""The versions of the layers that a node holds, and how a layer that is being seeded catches up (rule 11)."""

# The versions of one layer on this node, and what moves them:
#
#     (not held) --adopt--> None --installed--> v --applied--> v + 1 ... --give_up--> (not held)
#                            ^                  |
#                            +---- _restart ----+      a gap, a dead source, commits that were missed
#
# An owner's or hot standby's layer is at the node's own version. A layer that is being seeded need not be:
#
# - *Behind.* Its state came at version v while commits v, v + 1, ... have been applied to the rest. They wait as
#   follow-ups, with their gradients as far as those are here, and are applied one after the other (``late``).
# - *Ahead.* Its source had applied commits that this node has not heard of yet. They are not applied again:
#   ``takes_step`` says no for a version that is past the step.
#
# A layer subscribes before it is fetched: from then on its commits are kept as follow-ups, so whatever version the
# source sends, what follows is here or on its way. A follow-up whose gradient never comes is a gap. Streams keep their
# order, so a later gradient of the same bucket shows it (``passed``), and the layer is fetched again.
#
# Follow-ups are as large as what is fetched, a gradient each. So holders are asked for few layers at a time, and of the
# others one follow-up stays: the source of the next layer may be a step behind this node.
#
# ``_asked`` and the deques say what is under way. Invariants: a layer has follow-ups only while its state is not here
# or is behind; what is given out (``_running``) counts only if its layer was not restarted meanwhile.
#
# Where a layer comes from:
#
#     this node builds it        for owners and hot standbys, where an era begins whose origin names no folder
#     the era's checkpoint       for the same nodes, where the origin names one; the layer is in ``_restoring``
#     another holder's memory    for all others, and for what is in ``_restoring`` as long as it cannot be read here
#
# Several may be asked for one layer: a holder besides the checkpoint, or a holder under each of two plans. The first
# answer counts, since the second may be of an older version (rule 11).

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Generic

from culm.pipeline.plan import Plan
from culm.stage_server.worker.effects import FetchLayers, RestoreLayers
from culm.stage_server.worker.outbox import COMMITS_TO_WAIT
from culm.stage_server.worker.work import Apply, Install, V

CHECKPOINT = ""  # in place of a holder: the layer was asked for from a checkpoint
# Layers for which holders are asked at once: while one is put in place the next is on its way.
MOST_ASKED = 2


@dataclass(frozen=True, slots=True)
class Followup(Generic[V]):
    """A commit that a layer has not seen, with its gradient: a value a bucket, None while that is on its way."""

    step: int
    scale: float
    values: tuple[V | None, ...]

    @property
    def whole(self) -> tuple[V, ...] | None:
        """The gradient, if all of it is here."""
        here = tuple(value for value in self.values if value is not None)
        return here if len(here) == len(self.values) else None

    def with_value(self, place: int, value: V) -> "Followup[V]":
        return replace(self, values=(*self.values[:place], value, *self.values[place + 1 :]))


class Holdings(Generic[V]):
    """Each layer has its own version; None while its state is not here yet.

    A layer in flight keeps the reduced gradients of the steps that commit meanwhile, so that it can follow.
    """

    def __init__(self) -> None:
        # Layer -> steps applied to it here; None: its state is not here. A layer that is not in it is not held.
        self._versions: dict[int, int | None] = {}
        # Layer -> the holder that was asked for it, or CHECKPOINT. Invariant: such a layer's version is None.
        self._asked: dict[int, str] = {}
        # Layer -> the commits that it has not seen. Invariant: once the state is here the steps have no gap, and begin
        # where the layer's last catch-up ends.
        self._followups: dict[int, list[Followup[V]]] = {}
        self._installs: deque[Install[V]] = deque()
        # Invariant: those of one layer are consecutive steps, the one that is given out among them.
        self._catch_ups: deque[Apply[V]] = deque()
        # Given out; None again if it has become void meanwhile. There is one: compute does one piece of work at a time.
        self._running: Install[V] | Apply[V] | None = None
        # Holders that could not send something under the present plan: others are asked first.
        self._failed_sources: set[str] = set()
        # Layers wanted from the checkpoint that the era begins from. Invariant: such a layer's version is None.
        self._restoring: set[int] = set()

    def version_of(self, layer: int) -> int | None:
        return self._versions.get(layer)

    def are_at(self, version: int, layers: range) -> bool:
        """Whether all of these layers are at the version."""
        return set(map(self._versions.get, layers)) <= {version}

    def kept(self) -> list[int]:
        """The layers whose state is here, or on its way from a checkpoint."""
        return [x for x, v in self._versions.items() if v is not None or x in self._restoring]

    def lacks(self, layer: int) -> bool:
        """Whether a layer that the era's checkpoint has is still wanted from there."""
        return layer in self._restoring and self._versions.get(layer, 0) is None

    def adopt(self, plan: Plan, node: str, version: int, anew: bool) -> None:
        """Takes on the layers that the plan gives to the node; of the others those whose state is here stay.

        A plan takes nothing from a node within a step: the node may have said that it is ready for the step with such
        a layer, and a later plan of the same step may count on that (rule 6). ``give_up`` ends it, with the commit.
        At the beginning of an era owners and hot standbys build the initial state themselves.
        """
        before = {} if anew else self._versions
        if anew:
            self._asked.clear()
            self._followups.clear()
            self._installs.clear()
            self._catch_ups.clear()
            self._running = None
            self._restoring.clear()
        self._failed_sources.clear()
        mine = plan.layers_of(node)
        self._versions = {layer: v for layer, v in before.items() if v is not None and layer not in mine}
        for stage in plan.stages:
            for layer in mine.intersection(stage.layers):
                builds = anew and not plan.origin.folder and plan.step == plan.origin.step and node in stage.required()
                initial = version if builds else None
                self._versions[layer] = before.get(layer, initial)
        # A holder that has left the plan will not answer: its layers are asked for anew.
        known = {*plan.members, CHECKPOINT}
        self._asked = {k: v for k, v in self._asked.items() if k in self._versions and v in known}
        self._restoring &= {layer for layer, v in self._versions.items() if v is None}
        self._await_checkpoint()

    def asked(self) -> tuple[int, ...]:
        """The layers that are on their way, or to be."""
        return tuple(self._asked)

    def held(self) -> list[int]:
        """The layers that the node is to have memory for, ascending."""
        return sorted(self._versions)

    def give_up(self, mine: Collection[int]) -> None:
        """A commit is to be applied: forgets all layers but these."""
        for layer in [layer for layer in self._versions if layer not in mine]:
            self._restart(layer)
            del self._versions[layer]

    def restores(self, plan: Plan, node: str, anew: bool) -> list[RestoreLayers]:
        """What an owner or hot standby of a new era reads from the checkpoint that the era begins from."""
        layers = [x for stage in plan.stages if node in stage.required() for x in stage.layers]
        if not anew or not plan.origin.folder or plan.step != plan.origin.step or not layers:
            return []
        self._restoring.update(layers)
        self._await_checkpoint()
        return [RestoreLayers(plan.origin, tuple(layers), plan.era)]

    def _await_checkpoint(self) -> None:
        """Layers that nobody else is asked for at present come from the checkpoint."""
        for layer in self._restoring:
            self._asked.setdefault(layer, CHECKPOINT)

    def unread(self, plan: Plan, node: str) -> list[FetchLayers]:
        """The checkpoint cannot be read here so far: another holder is asked, once, for what is still missing."""
        for layer in self._restoring:
            if self._asked.get(layer) == CHECKPOINT:
                del self._asked[layer]
        out = self.fetches(plan, node)
        self._await_checkpoint()
        return out

    def fetches(self, plan: Plan, node: str) -> list[FetchLayers]:
        """What to ask for now: layers without state that nobody was asked for, from the owner or a hot standby."""
        out: list[FetchLayers] = []
        room = MOST_ASKED - sum(holder != CHECKPOINT for holder in self._asked.values())
        if None not in self._versions.values() or room <= 0:
            return out
        mine = plan.layers_of(node)
        for stage in plan.stages:
            lacking = [x for x in stage.layers if x in mine and self._versions[x] is None and x not in self._asked]
            wanted = tuple(lacking[:room])
            holders = [n for n in stage.required() if n != node]
            if wanted and self._failed_sources.issuperset(holders):
                self._failed_sources.clear()  # each has failed once: the first one again
            sources = [n for n in holders if n not in self._failed_sources]
            if wanted and sources:
                room -= len(wanted)
                self._asked.update(dict.fromkeys(wanted, sources[0]))
                # Better that training waits for these bytes than that the only copy is lost, and the run goes back.
                only_copy = len(stage.required()) == 1 and any(b.node == node for b in stage.standbys)
                out.append(FetchLayers(sources[0], wanted, plan.era, at_once=only_copy))
        return out

    def fetched(self, layer: int, version: int, state: V, source: str) -> None:
        """A layer's state has arrived."""
        if self._asked.get(layer) is not None and self._versions.get(layer, 0) is None:
            self._installs.append(Install(layer, version, state, source))

    def failed(self, peer: str, layers: Iterable[int]) -> None:
        """The source could not send these layers: another one is asked, and in the end the same one again."""
        self._failed_sources.add(peer)
        for layer in layers:
            if self._asked.get(layer) != peer:
                continue  # another one has been asked since, or the state is here
            if layer in self._restoring:
                self._asked[layer] = CHECKPOINT  # that holder has not read it either
            else:
                self._restart(layer)

    def passed(self, layer: int, place: int, step: int) -> None:
        """A later gradient of one of the layer's buckets is here: streams keep their order, so a missing one will not
        come.
        """
        waiting = self._followups.get(layer, [])
        if self._versions.get(layer) is not None and any(x.step < step and x.values[place] is None for x in waiting):
            self._restart(layer)

    def close_gaps(self) -> None:
        """While no step runs: no later gradient shows that a missing one is lost. Its layer is fetched again."""
        for layer, waiting in list(self._followups.items()):
            if self._versions.get(layer) is not None and any(x.whole is None for x in waiting):
                self._restart(layer)

    def next_state(self) -> Install[V] | Apply[V] | None:
        """A state to put in place, else a step that a layer has missed."""
        if not self._installs and not self._catch_ups:
            return None
        return self._next_install() or self._next_catch_up()

    def _next_install(self) -> Install[V] | None:
        """The next state to put in place, of a layer that still lacks it.

        Two holders may have sent the same layer, where the plan changed meanwhile. The later answer may be of an older
        version: it would lie under the version of the first.
        """
        while self._installs:
            install = self._installs.popleft()
            if install.layer in self._asked and self._versions.get(install.layer, 0) is None:
                self._running = install
                return install
        return None

    def installed(self, work: Install[V], version: int) -> None:
        """The state is in place; what was committed since its version follows, if none of it is missing."""
        layer = work.layer
        running, self._running = self._running, None
        if running is None or layer not in self._versions or layer not in self._asked:
            return  # the layer was restarted or given up, or an era began, while compute put it in place
        # The source had applied the first of them. The others must be all steps up to this node's version.
        followups = [x for x in self._followups.pop(layer, []) if x.step >= work.version]
        if [x.step for x in followups] != list(range(work.version, version)) or (
            sum(x.whole is None for x in followups) > COMMITS_TO_WAIT
        ):
            self._restart(layer)
            return
        self._asked.pop(layer)
        self._restoring.discard(layer)
        self._versions[layer] = work.version
        if followups:
            self._followups[layer] = followups
            self._follow(layer)

    def refuse(self) -> bool:
        """The state that was to be installed does not fit. Whether it was still wanted: then its source has failed."""
        running, self._running = self._running, None
        return running is not None

    def _next_catch_up(self) -> Apply[V] | None:
        if not self._catch_ups:
            return None
        self._running = catch_up = self._catch_ups.popleft()
        return catch_up

    def caught_up(self, work: Apply[V]) -> None:
        running, self._running = self._running, None
        # Void if the layer was restarted meanwhile: its state is on its way once more, and will be put over this one.
        for layer, _ in work.gradients:
            if running is not None and self._versions.get(layer) == work.step:
                self._versions[layer] = work.step + 1

    def takes_step(self, layer: int, followup: Followup[V]) -> bool:
        """Whether a committed step is to be applied to the layer; a layer in flight keeps it for later."""
        version, step = self._versions.get(layer), followup.step
        # A layer with follow-ups keeps the step though its gradient is here: steps are applied in order.
        if version is None or layer in self._followups or (version == step and followup.whole is None):
            waiting = self._followups.setdefault(layer, [])
            if version is None and layer not in self._asked:
                waiting.clear()
            waiting.append(followup)
            if version is not None and len(waiting) > COMMITS_TO_WAIT:
                self._restart(layer)  # a gap that does not close: that layer again
            return False
        return version == step

    def late(self, layer: int, place: int, step: int, value: V) -> None:
        """A bucket's reduced gradient has come after its commit: a layer that waits for it goes on."""
        waiting = self._followups.get(layer)
        if waiting is None:
            return
        waiting[:] = [x.with_value(place, value) if x.step == step else x for x in waiting]
        if self._versions.get(layer) is not None:
            self._follow(layer)

    def _follow(self, layer: int) -> None:
        """The follow-ups whose gradients are here are to be applied, one after the other."""
        waiting = self._followups[layer]
        while waiting and (gradient := waiting[0].whole) is not None:
            followup = waiting.pop(0)
            self._catch_ups.append(Apply(followup.step, followup.scale, ((layer, gradient),), catch_up=True))
        if not waiting:
            del self._followups[layer]

    def applied(self, layers: Iterable[int]) -> None:
        """A committed step was applied to these layers."""
        for layer in layers:
            version = self._versions.get(layer)
            if version is not None:
                self._versions[layer] = version + 1

    def start_over(self) -> None:
        """Every layer is to be fetched anew."""
        self._restoring.clear()
        for layer in self._versions:
            self._restart(layer)
        self._installs.clear()
        self._catch_ups.clear()

    def _restart(self, layer: int) -> None:
        """Its state counts no more, whatever is under way with it; ``fetches`` asks for the layer anew."""
        running = self._running
        if running is not None and layer == _layer_of(running):
            self._running = None
        self._asked.pop(layer, None)
        self._restoring.discard(layer)
        self._followups.pop(layer, None)
        self._catch_ups = deque(work for work in self._catch_ups if work.gradients[0][0] != layer)
        if layer in self._versions:
            self._versions[layer] = None


def _layer_of(work: Install[V] | Apply[V]) -> int:
    return work.layer if isinstance(work, Install) else work.gradients[0][0]

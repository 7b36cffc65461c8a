"""The versions of the layers that a node holds, and how a layer that is being seeded catches up (rule 11)."""

from collections import deque
from collections.abc import Iterable
from typing import Generic

from pipeline.plan import Plan
from stage_server.instructions import Apply, FetchLayers, Install, RestoreLayers, V

CHECKPOINT = ""  # in place of a holder: the layer was asked for from a checkpoint


class Seeding(Generic[V]):
    """Each layer has its own version; None while its state is not here yet.

    A layer in flight keeps the reduced gradients of the steps that commit meanwhile, so that it can follow.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int | None] = {}
        self._asked: dict[int, str] = {}  # layer -> the holder that was asked for it
        self._followups: dict[int, list[tuple[int, float, V | None]]] = {}
        self._installs: deque[Install[V]] = deque()
        self._catch_ups: deque[Apply[V]] = deque()
        self._failed_sources: set[str] = set()

    def version_of(self, layer: int) -> int | None:
        return self._versions.get(layer)

    def adopt(self, plan: Plan, node: str, version: int, anew: bool) -> None:
        """Takes on the layers that the plan gives to the node and forgets the others.

        At the beginning of an era owners and hot standbys build the initial state themselves.
        """
        before = {} if anew else self._versions
        if anew:
            self._asked.clear()
            self._followups.clear()
            self._installs.clear()
            self._catch_ups.clear()
        self._failed_sources.clear()
        self._versions = {}
        mine = plan.layers_of(node)
        for stage in plan.stages:
            for layer in mine.intersection(stage.layers):
                initial = version if anew and not plan.origin and node in stage.required() else None
                self._versions[layer] = before.get(layer, initial)
        known = {*plan.members, CHECKPOINT}
        self._asked = {k: v for k, v in self._asked.items() if k in self._versions and v in known}

    def restores(self, plan: Plan, node: str, anew: bool) -> list[RestoreLayers]:
        """What an owner or hot standby of a new era reads from the checkpoint that the era begins from."""
        layers = [x for stage in plan.stages if node in stage.required() for x in stage.layers]
        if not anew or not plan.origin or plan.step != plan.origin_step or not layers:
            return []
        self._asked.update(dict.fromkeys(layers, CHECKPOINT))
        return [RestoreLayers(plan.origin, plan.origin_step, tuple(layers), plan.era)]

    def fetches(self, plan: Plan, node: str) -> list[FetchLayers]:
        """What to ask for now: layers without state that nobody was asked for, from the owner or a hot standby."""
        out = []
        mine = plan.layers_of(node)
        for stage in plan.stages:
            wanted = tuple(x for x in stage.layers if x in mine and self._versions[x] is None and x not in self._asked)
            sources = [n for n in stage.required() if n != node and n not in self._failed_sources]
            if wanted and sources:
                self._asked.update(dict.fromkeys(wanted, sources[0]))
                out.append(FetchLayers(sources[0], wanted, plan.era))
        return out

    def fetched(self, layer: int, version: int, state: V) -> None:
        """A layer's state has arrived."""
        if self._asked.get(layer) is not None and self._versions.get(layer, 0) is None:
            self._installs.append(Install(layer, version, state))

    def failed(self, peer: str, layers: Iterable[int]) -> None:
        """The source could not send these layers: another one is asked; the same one after the next commit."""
        self._failed_sources.add(peer)
        for layer in layers:
            if self._asked.get(layer) == peer:
                self._restart(layer)

    def next_install(self) -> Install[V] | None:
        return self._installs.popleft() if self._installs else None

    def installed(self, work: Install[V], version: int) -> None:
        """The state is in place; what was committed since its version follows, if none of it is missing."""
        layer = work.layer
        if layer not in self._versions or layer not in self._asked:
            return
        followups = {t: (scale, value) for t, scale, value in self._followups.pop(layer, [])}
        steps = range(work.version, version)
        if any(t not in followups or followups[t][1] is None for t in steps):
            self._restart(layer)
            return
        self._asked.pop(layer)
        self._versions[layer] = work.version
        for t in steps:
            scale, value = followups[t]
            if value is not None:
                self._catch_ups.append(Apply(t, scale, ((layer, value),), catch_up=True))

    def next_catch_up(self) -> Apply[V] | None:
        return self._catch_ups.popleft() if self._catch_ups else None

    def caught_up(self, work: Apply[V]) -> None:
        for layer, _ in work.gradients:
            if self._versions.get(layer) == work.step:
                self._versions[layer] = work.step + 1

    def takes_step(self, layer: int, step: int, scale: float, value: V | None) -> bool:
        """Whether a committed step is to be applied to the layer; a layer in flight keeps it for later."""
        version = self._versions.get(layer)
        if version is None:
            self._followups.setdefault(layer, []).append((step, scale, value))
            return False
        if version == step and value is None:
            self._restart(layer)  # a gap: that layer again
            return False
        return version == step

    def applied(self, layers: Iterable[int]) -> None:
        """A committed step was applied to these layers."""
        self._failed_sources.clear()
        for layer in layers:
            version = self._versions.get(layer)
            if version is not None:
                self._versions[layer] = version + 1

    def start_over(self) -> None:
        """Every layer is to be fetched anew."""
        for layer in self._versions:
            self._restart(layer)
        self._installs.clear()
        self._catch_ups.clear()

    def _restart(self, layer: int) -> None:
        self._asked.pop(layer, None)
        self._followups.pop(layer, None)
        if layer in self._versions:
            self._versions[layer] = None

"""How a layer's gradient is cut into what it adds to buckets, its own and those of earlier layers (rule 22)."""

# The values of one layer, in the order of ``Plan.addends``:
#
#     its own buckets                       all parameters that no earlier layer has, cut by ``culm.pipeline.buckets``;
#                                           buffers and tallies ride with the first
#     for each earlier layer, in order      of each of that layer's buckets the slices of tied parameters, under that
#                                           layer's names, so that they can be added to its own gradient
#
# What comes back is the same: the whole sums of these buckets. Those of an earlier layer have that one's other
# parameters, too, which are passed over.

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from culm.pipeline.buckets import Slice, cut
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend
from culm.pipeline.user_code.tied import Shared
from culm.stage_server.compute import blocks


class GradientCut:
    """Of one layer."""

    def __init__(
        self,
        index: int,
        module: nn.Module,
        shared: Sequence[Shared] = (),
        shared_places: frozenset[int] = frozenset(),
    ) -> None:
        """``shared``: with earlier layers, by these.

        ``shared_places``: of its own buckets, those to which later layers add.
        """
        tied = {own for each in shared for own, _ in each.tie.names}
        own = {name: parameter.numel() for name, parameter in module.named_parameters() if name not in tied}
        self._names, self._sizes = list(own), list(own.values())
        self._shared = shared
        self._shared_places = shared_places
        self._cut: tuple[tuple[Slice, ...], ...] = ()
        self.arrange([Addend(index)])

    def arrange(self, addends: Sequence[Addend]) -> None:
        """``addends``: with the numbers of buckets that the plan has; the same in every plan of a run."""
        own = sum(not addend.use for addend in addends)
        if own != len(self._cut):
            self._cut = cut(self._sizes, own)
        self.addends = addends

    def is_shared(self, addend: Addend) -> bool:
        """Whether several layers add to the bucket."""
        place = self.addends.index(addend)
        return place >= len(self._cut) or place in self._shared_places

    def pieces(self, value: Value) -> tuple[tuple[Addend, Value], ...]:
        """A block's gradient of the layer, by addend."""
        if not self._shared:
            return tuple(zip(self.addends, blocks.in_buckets(value, self._names, self._cut), strict=True))
        given = dict(value.tensors)
        lent = []
        for each in self._shared:
            names = {known: own for own, known in each.tie.names}
            here = {k: given[f"grad.{own}"] for k, own in names.items() if f"grad.{own}" in given}
            part = Value(tuple((f"grad.{name}", tensor) for name, tensor in here.items()))
            whole = blocks.in_buckets(part, each.names, each.slices)
            lent += [whole[place] for place in each.tie.places]
            for own in names.values():
                given.pop(f"grad.{own}", None)
        mine = blocks.in_buckets(replace(value, tensors=tuple(given.items())), self._names, self._cut)
        return tuple(zip(self.addends, (*mine, *lent), strict=True))

    def joined(self, values: Sequence[Value]) -> Value:
        """The layer's reduced gradient, of the sums of its addends' buckets; flat where there are several."""
        own = blocks.joined(values[: len(self._cut)])
        at, tensors = len(self._cut), list(own.tensors)
        for each in self._shared:
            names = {f"grad.{known}": f"grad.{own}" for own, known in each.tie.names}
            given = blocks.joined(values[at : at + len(each.tie.places)])
            tensors += [(names[name], tensor) for name, tensor in given.tensors if name in names]
            at += len(each.tie.places)
        return replace(own, tensors=tuple(tensors)) if self._shared else own

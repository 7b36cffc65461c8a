"""Which parameters of several layers are one: by identity where layers are ready-made modules, else by name."""

# Three sources tell, and all mean the same:
#
#     the layers themselves     one nn.Parameter in several of the modules that the job's callable returns
#     the callable              its list is a ``TiedLayers``
#     the job                   model.tied
#
# Constructors that return the same tensor are no source: a node that builds one layer alone would not see it, so they
# are refused (``sharing``). What follows from ties for sums and for the wire is in ``culm.pipeline.ties``.

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from culm.pipeline import buckets
from culm.pipeline.buckets import Slice
from culm.pipeline.errors import JobError
from culm.pipeline.text import closest
from culm.pipeline.ties import Tie

WHERE = "model.tied"
Place = tuple[int, str]  # a layer, and the name of a parameter in it
Group = tuple[Place, ...]  # one parameter: a place in each layer that uses it, ascending by layer


class TiedLayers(list[Any]):
    """A list of layers that says which of their parameters are one, as ``model.tied`` does."""

    def __init__(self, layers: Iterable[Any], tied: Sequence[Sequence[str]]) -> None:
        super().__init__(layers)
        self.tied = tied


@dataclass(frozen=True, slots=True)
class Shared:
    """How a layer's gradient is cut where it adds to an earlier layer's buckets."""

    tie: Tie
    slices: tuple[tuple[Slice, ...], ...]  # of each bucket of ``tie.first``
    names: tuple[str, ...]  # of the parameters of ``tie.first``, in order


def by_identity(modules: Mapping[int, nn.Module]) -> list[Group]:
    """Parameters that are the same object in several layers."""
    found: dict[int, list[Place]] = {}
    for index, module in sorted(modules.items()):
        for name, parameter in module.named_parameters():
            found.setdefault(id(parameter), []).append((index, name))
    return [tuple(places) for places in found.values() if len(places) > 1]


def by_name(tied: Sequence[Sequence[str]], layers: int, where: str = WHERE) -> list[Group]:
    """Of names such as ``["0.wte.weight", "13.lm_head.weight"]``: layer, then the parameter's name. Raises JobError."""
    groups = []
    for names in tied:
        places = []
        for text in names:
            number, _, name = text.partition(".")
            if not number.isdecimal() or not name:
                raise JobError(f"{text!r} names no parameter of a layer", where, 'write it as "0.wte.weight"')
            if int(number) >= layers:
                raise JobError(f"{text!r} is of layer {number}, and the last one is {layers - 1}", where, "correct it")
            places.append((int(number), name))
        if len({layer for layer, _ in places}) < max(2, len(places)):
            what = f"{list(names)} does not name parameters of two or more layers, one of each"
            raise JobError(what, where, "name the parameter once in each layer that uses it")
        groups.append(tuple(sorted(places)))
    return groups


def together(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Each once. Raises JobError where a parameter is in two."""
    found = tuple(sorted(set(groups)))
    seen: dict[Place, Group] = {}
    for group in found:
        for place in group:
            if place in seen:
                what = f"{in_words(place)} is tied twice: {_words(seen[place])}, and {_words(group)}"
                raise JobError(what, WHERE, "name all layers that use it in one list")
            seen[place] = group
    return found


def refuse_unlike(groups: Iterable[Group], sketches: Mapping[int, nn.Module]) -> None:
    """Raises JobError where a group's parameters cannot be one. ``sketches``: of all layers that are in a group."""
    known = {layer: dict(module.named_parameters()) for layer, module in sketches.items()}
    for group in groups:
        for layer, name in group:
            if name not in known[layer]:
                mend = closest(name, sorted(known[layer])) or "correct the name"
                raise JobError(f"layer {layer} has no parameter {name!r}", WHERE, mend)
        first, *others = ((place, known[place[0]][place[1]]) for place in group)
        for place, parameter in others:
            for what, one, other in (
                ("shape", tuple(first[1].shape), tuple(parameter.shape)),
                ("dtype", first[1].dtype, parameter.dtype),
                ("requires_grad", first[1].requires_grad, parameter.requires_grad),
            ):
                if one != other:
                    text = f"{in_words(first[0])} and {in_words(place)} differ in {what}: {one} and {other}"
                    raise JobError(text, WHERE, "tied parameters are one: make them alike, or do not tie them")


def ties_of(groups: Iterable[Group], sketches: Mapping[int, nn.Module], pipelines: int) -> list[Shared]:
    """The ties of a model, ascending. ``groups``: as ``refuse_unlike`` lets them pass."""
    pairs: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for (first, name), *others in groups:
        for layer, own in others:
            pairs.setdefault((first, layer), []).append((own, name))
    found = []
    for (first, layer), names in sorted(pairs.items()):
        parameters = list(sketches[first].named_parameters())
        sizes = [math.prod(parameter.shape) for _, parameter in parameters]
        cut = buckets.cut(sizes, buckets.count(sum(sizes), pipelines))
        tied = {i for i, (name, _) in enumerate(parameters) if name in {known for _, known in names}}
        places = tuple(place for place, slices in enumerate(cut) if any(x.parameter in tied for x in slices))
        tie = Tie(first, layer, tuple(names), places)
        found.append(Shared(tie, cut, tuple(name for name, _ in parameters)))
    return found


def in_words(place: Place) -> str:
    return f"{place[0]}.{place[1]}"


def _words(group: Group) -> str:
    return " = ".join(map(in_words, group))

"""Which parameters of several layers are one: by identity where layers are ready-made modules, else by name."""

# Three sources tell, and all mean the same:
#
#     the layers themselves     one nn.Parameter in several of the modules that the job's callable returns
#     the constructors          each says which of its parameters are shared, and under which label (``tied``). So the
#                               tie goes with them, whatever list they are put into
#     the job                   model.tied
#
# Constructors that return the same tensor are no source: a node that builds one layer alone would not see it, so they
# are refused (``sharing``). What follows from ties for sums and for the wire is in ``culm.pipeline.ties``.

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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


def tied(constructor: Callable[[], nn.Module], names: Mapping[str, Hashable]) -> Callable[[], nn.Module]:
    """The constructor of a layer that shares parameters with others.

    ``names``: of each, its name in the layer, and a label: parameters of several layers with one label are one.
    """
    made = partial(constructor)
    made.tied = dict(names)  # type: ignore[attr-defined]
    return made


def by_label(layers: Sequence[Any]) -> list[Group]:
    """What ``tied`` says of these constructors."""
    found: dict[Hashable, list[Place]] = {}
    for index, layer in enumerate(layers):
        names = getattr(layer, "tied", {}) if isinstance(layer, partial) else {}
        for name, label in names.items():
            found.setdefault(label, []).append((index, name))
    return [tuple(places) for places in found.values() if len(places) > 1]


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


def by_name(tied: Sequence[Sequence[str]], layers: int) -> list[Group]:
    """Of names such as ``["0.wte.weight", "13.lm_head.weight"]``: layer, then the parameter's name. Raises JobError."""
    groups = []
    for names in tied:
        places = []
        for text in names:
            number, _, name = text.partition(".")
            if not number.isdecimal() or not name:
                raise JobError(f"{text!r} names no parameter of a layer", WHERE, 'write it as "0.wte.weight"')
            if int(number) >= layers:
                raise JobError(f"{text!r} is of layer {number}, and the last one is {layers - 1}", WHERE, "correct it")
            places.append((int(number), name))
        groups.append(tuple(sorted(places)))
    return groups


def together(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Each once. Raises JobError where a parameter is in two, or a group has two of one layer."""
    found = tuple(sorted(set(groups)))
    seen: dict[Place, Group] = {}
    for group in found:
        if len({layer for layer, _ in group}) < max(2, len(group)):
            what = f"{_words(group)} are not parameters of two or more layers, one of each"
            raise JobError(what, WHERE, "name the parameter once in each layer that uses it")
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
                alias = dict(sketches[layer].named_parameters(remove_duplicate=False)).get(name)
                own = next((own for own, parameter in known[layer].items() if parameter is alias), "")
                mend = f"call it {own}" if own else closest(name, sorted(known[layer])) or "correct the name"
                raise JobError(f"layer {layer} has no parameter {name!r}", WHERE, mend)
        first, *others = ((place, known[place[0]][place[1]]) for place in group)
        for place, parameter in others:
            for what, one, other in (
                ("shape", tuple(first[1].shape), tuple(parameter.shape)),
                ("dtype", first[1].dtype, parameter.dtype),
                ("requires_grad", first[1].requires_grad, parameter.requires_grad),
                ("their strides", first[1].stride(), parameter.stride()),  # optimizers may go by memory
            ):
                if one != other:
                    text = f"{in_words(first[0])} and {in_words(place)} differ in {what}: {one} and {other}"
                    raise JobError(text, WHERE, "tied parameters are one: make them alike, or do not tie them")


def ties_of(groups: Iterable[Group], sketches: Mapping[int, nn.Module], pipelines: int) -> list[Shared]:
    """The ties of a model, ascending. ``groups``: as ``refuse_unlike`` lets them pass."""
    pairs: dict[tuple[int, int], list[tuple[str, str]]] = {}
    groups = list(groups)
    elsewhere = {place for group in groups for place in group[1:]}
    for (first, name), *others in groups:
        for layer, own in others:
            pairs.setdefault((first, layer), []).append((own, name))
    found = []
    for (first, layer), names in sorted(pairs.items()):
        every = {name: math.prod(parameter.shape) for name, parameter in sketches[first].named_parameters()}
        # Without those that an earlier layer has, which are cut there; how many buckets there are goes by all.
        parameters = [(name, size) for name, size in every.items() if (first, name) not in elsewhere]
        cut = buckets.cut([size for _, size in parameters], buckets.count(sum(every.values()), pipelines))
        tied = {i for i, (name, _) in enumerate(parameters) if name in {known for _, known in names}}
        places = tuple(place for place, slices in enumerate(cut) if any(x.parameter in tied for x in slices))
        tie = Tie(first, layer, tuple(names), places)
        found.append(Shared(tie, cut, tuple(name for name, _ in parameters)))
    return found


def in_words(place: Place) -> str:
    return f"{place[0]}.{place[1]}"


def _words(group: Group) -> str:
    return " = ".join(map(in_words, group))

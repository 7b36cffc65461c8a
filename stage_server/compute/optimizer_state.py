"""An optimizer's state as named tensors, and back, exactly: what a copy of a layer needs beside its parameters.

    optimizer.0.exp_avg     a tensor on the device of the optimizer's parameter 0
    host.0.step             a tensor elsewhere, such as a count on the host beside a parameter on a GPU
    number.0.step           a bool, an int or a float; plain.0.history: other plain data, as JSON in bytes
    nested.0.GG             a list, tuple or dict of tensors and plain data: as JSON, with numbers in place of tensors,
                            which follow as optimizer.0.GG[0] and so on
    group.0.lr              an entry of parameter group 0: a number; groupplain.0.betas: other plain data
    groupoptions.1          what tells group 1 from the others: the options that the job's ``groups`` gives it
    steppedby.0             the optimizer that the job's ``groups`` names for parameter 0

Plain data is None, bool, int, float, str, and tuples, lists and dicts of plain data. What is of another kind cannot be
copied; so is what an optimizer keeps beside ``state`` and ``param_groups``: ``compute.copying`` tries that.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from culm.pipeline.user_code.groups import Options, is_plain_data
from culm.pipeline.user_code.optimizers import OWN, optimizer_of

KINDS = ("optimizer", "host", "number", "plain", "nested", "group", "groupplain", "groupoptions", "steppedby")
Entry = tuple[str, torch.Tensor]
PART = re.compile(r"(.+)\[(\d+)\]")  # the entry that a tensor is part of, and its number there


def held_over(entries: Sequence[Entry], changed: frozenset[str] | None) -> tuple[Entry, ...]:
    """What of a checkpoint's entries holds where these options of the job's own optimizer changed; None: another one.

    What optimizers keep that the job's ``groups`` name holds in any case.
    """
    others = {name.removeprefix("steppedby.") for name, _ in entries if name.startswith("steppedby.")}
    groups = {name.removeprefix("groupoptions."): x for name, x in entries if name.startswith("groupoptions.")}
    groups_of_others = {place for place, options in groups.items() if optimizer_of(_unpacked(options)) != OWN}

    def holds(name: str) -> bool:
        kind, _, rest = name.partition(".")
        place, _, entry = rest.partition(".")
        of_group = kind in ("group", "groupplain", "groupoptions")
        if kind not in KINDS or place in (groups_of_others if of_group else others):
            return True
        return changed is not None and not (of_group and entry in changed)

    return tuple((name, tensor) for name, tensor in entries if holds(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Of what, and how, a layer's optimizer was made.

    A parameter is numbered by its place in the layer, whatever its group. A group of a copy is the group here that has
    the same options, wherever they stand: a job that is resumed may have others.
    """

    parameters: Sequence[torch.Tensor]  # the layer's, in its order; the optimizer may have some of them
    options: Sequence[Options] = ({},)  # of each group, as the job's ``groups`` gives them
    scheduled: frozenset[str] = frozenset()  # entries of groups that are set before each step: no copy has them

    def numbered(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """The optimizer's parameters, in the layer's order."""
        mine = {id(parameter) for parameter in optimized(optimizer)}
        return [parameter for parameter in self.parameters if id(parameter) in mine]

    def stepped_by(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Of each of these parameters: the optimizer that its group names, or OWN."""
        named = zip(optimizer.param_groups, self.options, strict=True)
        of = {id(parameter): optimizer_of(options) for group, options in named for parameter in group["params"]}
        return [of[id(parameter)] for parameter in self.numbered(optimizer)]


def exported(optimizer: torch.optim.Optimizer, made: Made) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors themselves, not copies. Raises TypeError for what cannot be copied, naming it."""
    for index, parameter in enumerate(made.numbered(optimizer)):
        for name, entry in optimizer.state.get(parameter, {}).items():
            yield from _exported(f"{index}.{name}", entry, parameter.device)
    for index, name in enumerate(made.stepped_by(optimizer)):
        if name != OWN:
            yield f"steppedby.{index}", _packed(name)
    for index, (group, options) in enumerate(zip(optimizer.param_groups, made.options, strict=True)):
        if options:
            yield f"groupoptions.{index}", _packed(options)
        for name, entry in group.items():
            if name in made.scheduled:
                continue
            if _is_number(entry):  # some optimizers count and adapt there
                yield f"group.{index}.{name}", _number(entry)
            elif name != "params" and is_plain_data(entry):
                yield f"groupplain.{index}.{name}", _packed(entry)


def install(optimizer: torch.optim.Optimizer, made: Made, entries: list[tuple[str, torch.Tensor]]) -> None:
    """Takes over what ``exported`` gave elsewhere, and forgets its own state.

    Placed as it was, never through load_state_dict: that casts it to the parameter's dtype.
    """
    optimizer.state.clear()
    parameters = made.numbered(optimizer)
    theirs = {name: _unpacked(tensor) for name, tensor in entries if name.startswith(("groupoptions.", "steppedby."))}
    # A job that is resumed may step a parameter by another optimizer, to which what the one before kept means nothing.
    stays = [theirs.get(f"steppedby.{i}", OWN) == name for i, name in enumerate(made.stepped_by(optimizer))]
    nested = {name.removeprefix("nested."): tensor for name, tensor in entries if name.startswith("nested.")}
    parts: dict[str, dict[int, torch.Tensor]] = {rest: {} for rest in nested}
    for name, tensor in entries:
        kind, _, rest = name.partition(".")
        place, _, entry = rest.partition(".")
        index = int(place)
        if kind in ("groupoptions", "steppedby"):
            continue
        if kind in ("group", "groupplain"):
            options = theirs.get(f"groupoptions.{index}", {})
            if options not in made.options or entry in made.scheduled:
                continue
            group = optimizer.param_groups[made.options.index(options)]
            group[entry] = tensor.item() if kind == "group" else _unpacked(tensor)
        elif not stays[index]:
            continue
        elif kind == "nested":  # its place among the entries, until its tensors are here: holders compare digests
            optimizer.state[parameters[index]][entry] = None
        elif kind in ("number", "plain"):
            optimizer.state[parameters[index]][entry] = tensor.item() if kind == "number" else _unpacked(tensor)
        else:
            held = tensor.to(parameters[index].device, copy=True) if kind == "optimizer" else tensor.clone()
            part = PART.fullmatch(rest)
            if part is not None and part[1] in nested:
                parts[part[1]][int(part[2])] = held
            else:
                optimizer.state[parameters[index]][entry] = held
    for rest, tensor in nested.items():
        place, _, entry = rest.partition(".")
        if stays[int(place)]:
            optimizer.state[parameters[int(place)]][entry] = _unpacked(tensor, parts[rest])


def optimized(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's parameters in its own order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _exported(name: str, entry: Any, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(entry, torch.Tensor):
        yield f"{'optimizer' if entry.device == device else 'host'}.{name}", entry.detach()
    elif _is_number(entry):
        yield f"number.{name}", _number(entry)
    elif is_plain_data(entry):
        yield f"plain.{name}", _packed(entry)
    elif _is_nested(entry):
        tensors: list[torch.Tensor] = []
        yield f"nested.{name}", _packed(entry, tensors)
        for number, tensor in enumerate(tensors):
            yield from _exported(f"{name}[{number}]", tensor, device)
    else:
        what = f"{type(entry).__name__} of objects" if isinstance(entry, list | tuple | dict) else None
        kind = what or type(entry).__name__
        raise TypeError(f"its state {name.partition('.')[2]!r} is a {kind}: only tensors and plain data can be copied")


def _is_nested(entry: Any) -> bool:
    """Whether it is plain data but for tensors in it."""
    if type(entry) in (list, tuple):
        return all(map(_is_nested, entry))
    if type(entry) is dict:
        return all(is_plain_data(key) and _is_nested(value) for key, value in entry.items())
    return isinstance(entry, torch.Tensor) or is_plain_data(entry)


def _is_number(entry: Any) -> bool:
    """One that a tensor holds exactly; a longer int is plain data."""
    return type(entry) in (bool, float) or (type(entry) is int and -(2**63) <= entry < 2**63)


def _number(entry: bool | int | float) -> torch.Tensor:
    kind = torch.bool if isinstance(entry, bool) else torch.int64 if isinstance(entry, int) else torch.float64
    return torch.tensor(entry, dtype=kind)


def _packed(entry: Any, tensors: list[torch.Tensor] | None = None) -> torch.Tensor:
    """``tensors``: takes those in the entry; a number is in their place."""
    found = tensors if tensors is not None else []
    return torch.frombuffer(bytearray(json.dumps(_tagged(entry, found)).encode()), dtype=torch.uint8)


def _unpacked(tensor: torch.Tensor, tensors: Mapping[int, torch.Tensor] = MappingProxyType({})) -> Any:
    return _untagged(json.loads(tensor.cpu().numpy().tobytes()), tensors)


def _tagged(entry: Any, tensors: list[torch.Tensor]) -> Any:
    """JSON knows no tuples, and no keys but text. It writes a float so that the same one is read."""
    if isinstance(entry, torch.Tensor):
        tensors.append(entry)
        return {"tensor": len(tensors) - 1}
    if isinstance(entry, tuple):
        return {"tuple": [_tagged(each, tensors) for each in entry]}
    if isinstance(entry, list):
        return [_tagged(each, tensors) for each in entry]
    if isinstance(entry, dict):
        return {"dict": [[_tagged(key, tensors), _tagged(value, tensors)] for key, value in entry.items()]}
    return entry


def _untagged(content: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(content, list):
        return [_untagged(each, tensors) for each in content]
    if isinstance(content, dict):
        ((kind, items),) = content.items()
        if kind == "tensor":
            return tensors[items]
        if kind == "tuple":
            return tuple(_untagged(each, tensors) for each in items)
        return {_untagged(key, tensors): _untagged(value, tensors) for key, value in items}
    return content

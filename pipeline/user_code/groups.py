"""Parameter groups: which of the optimizer's options a parameter has, by a function of the job's."""

# The job names a function of a layer's number, a parameter's name in it, and the parameter. It returns the options that
# are this parameter's own, such as {"weight_decay": 0.0}. Parameters with equal options are one group.
#
# One process alone has one optimizer over the whole model, and a node one for each layer that it holds. So groups are
# numbered through the model, in the order in which their options come first. A schedule that names a value for each
# group (``OneCycleLR(max_lr=[...])``) means these numbers, whatever groups a layer has parameters of. The options may
# name another optimizer than the job's (``optimizers``).

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.text import closest
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.optimizers import OPTIMIZER, OWN

Options = dict[str, Any]
WHERE = "train.groups"


@dataclass(frozen=True)
class Groups:
    """Of a whole model. Without a function of the job's there is one group, without options."""

    options: Sequence[Options]
    numbers: Mapping[tuple[int, str], int]  # (layer, name of the parameter) -> the number of its group
    # Of the first parameter in each group: (dtype, dimensions). Some optimizers take matrices alone.
    kinds: Sequence[tuple[torch.dtype, int]]
    # By optimizer: a shape of each kind of parameter that it has.
    shapes: Mapping[str, Mapping[tuple[torch.dtype, int], tuple[int, ...]]]

    @property
    def optimizers(self) -> list[str]:
        """The names of those that have parameters, the job's own as OWN."""
        return list(self.shapes) or [OWN]

    def options_for(self, optimizer: str) -> list[Options]:
        """Those of its groups, without its name."""
        mine = [own for own in self.options if own.get(OPTIMIZER, OWN) == optimizer]
        return [{option: value for option, value in own.items() if option != OPTIMIZER} for own in mine]

    def number(self, layer: int, name: str) -> int:
        return self.numbers[layer, name]

    def of_layer(self, layer: int, module: nn.Module) -> list[int]:
        """The groups that a layer has parameters of, ascending: those of its optimizer, in its order."""
        return sorted({self.number(layer, name) for name, p in module.named_parameters() if p.requires_grad})


def groups_of(
    layers: Iterable[tuple[int, nn.Module]],
    function: Callable[..., Any] | None,
    firsts: Mapping[tuple[int, str], tuple[int, str]] = MappingProxyType({}),
) -> Groups:
    """``layers``: all of the model, by number, for names and shapes alone. Raises JobError for what is no options.

    ``firsts``: of parameters that an earlier layer has, too: their place there, whose group they are in.
    """
    options: list[Options] = []
    numbers: dict[tuple[int, str], int] = {}
    kinds: list[tuple[torch.dtype, int]] = []
    shapes: dict[str, dict[tuple[torch.dtype, int], tuple[int, ...]]] = {}
    for index, module in layers:
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if (index, name) in firsts:
                numbers[index, name] = numbers[firsts[index, name]]
                continue
            own = _asked(function, index, name, parameter) if function is not None else {}
            if own not in options:
                options.append(own)
                kinds.append((parameter.dtype, parameter.dim()))
            numbers[index, name] = options.index(own)
            shapes.setdefault(own.get(OPTIMIZER, OWN), {})[parameter.dtype, parameter.dim()] = tuple(parameter.shape)
    return Groups(options or ({},), numbers, kinds, shapes)


def refuse_unknown(options: Iterable[Options], optimizer: torch.optim.Optimizer) -> None:
    """Raises JobError for an option that the optimizer does not know: torch keeps it, and nothing ever reads it."""
    known = sorted(optimizer.defaults)
    for option in dict.fromkeys(name for own in options for name in own):
        if known and option not in known:
            raise JobError(f"{type(optimizer).__name__} has no option {option!r}", WHERE, closest(option, known))


def _asked(function: Callable[..., Any], layer: int, name: str, parameter: torch.Tensor) -> Options:
    try:
        own, again = (function(layer, name, parameter) for _ in range(2))
    except RAISED as error:
        what = f"it raised {described(error)} for {name} of layer {layer}"
        raise JobError(what, WHERE, "correct the code") from error
    if not isinstance(own, dict) or not all(isinstance(key, str) for key in own):
        what = f"it returned a {type(own).__name__} for {name} of layer {layer}"
        raise JobError(what, WHERE, 'return a dict of the optimizer\'s options, such as {"weight_decay": 0.0}, or {}')
    if not isinstance(own.get(OPTIMIZER, OWN), str):
        what = f"the optimizer of {name} of layer {layer} is a {type(own[OPTIMIZER]).__name__}"
        raise JobError(what, WHERE, 'name it: {"optimizer": "torch.optim:Muon"}')
    if odd := [option for option, value in own.items() if not is_plain_data(value)]:
        what = f"it returned {odd[0]} = {own[odd[0]]!r} for {name} of layer {layer}, which no checkpoint can hold"
        raise JobError(what, WHERE, "return Python's own numbers and words, such as float(x)")
    if own != again:
        what = f"it returned other options for {name} of layer {layer} when it was asked again"
        raise JobError(what, WHERE, "let them follow from layer, name and parameter alone")
    return own


def is_plain_data(entry: Any) -> bool:
    """None, bool, int, float, str, and tuples, lists and dicts of these: what a copy of a layer can carry as text."""
    if type(entry) in (list, tuple):
        return all(map(is_plain_data, entry))
    if type(entry) is dict:
        return all(is_plain_data(key) and is_plain_data(value) for key, value in entry.items())
    return entry is None or type(entry) in (bool, int, float, str)

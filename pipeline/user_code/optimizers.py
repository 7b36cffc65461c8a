"""Optimizers that step together: the job's own, and those that its parameter groups name."""

# A group with an "optimizer" among its options is that one's: such as Muon for matrices, beside an AdamW for all else.
# Everything else in Culm sees one optimizer, with one list of groups and one state: those of its parts. Each part has
# its parameters alone, so it steps them as it would by itself.

from collections.abc import Callable, Sequence
from typing import Any

import torch

OPTIMIZER = "optimizer"  # the option that names one, as "module:callable"; all others of its group are that one's
OWN = ""  # in place of a name: the job's own


class Several(torch.optim.Optimizer):
    """Optimizers over groups of their own. Groups and state are theirs: what changes here changes there."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer], of_group: Sequence[int]) -> None:
        """``of_group``: by group, the part that it is of; a part's groups keep their order."""
        theirs = [iter(part.param_groups) for part in parts]
        super().__init__([next(theirs[part]) for part in of_group], {})
        self._parts = parts
        for part in parts:
            self.state.update(part.state)
            part.state = self.state

    def step(self, closure: Any = None) -> Any:
        """Of every part; a closure is taken by none of them."""
        for part in self._parts:
            part.step()


def optimizer_of(group: torch.Tensor | dict[str, Any]) -> str:
    """The name of the optimizer that a parameter, or a group of them, is for."""
    return str(group.get(OPTIMIZER, OWN)) if isinstance(group, dict) else OWN


def apart(
    groups: Sequence[torch.Tensor | dict[str, Any]],
    make: Callable[[str, list[torch.Tensor | dict[str, Any]]], torch.optim.Optimizer],
) -> dict[str, torch.optim.Optimizer]:
    """The optimizers of these parameters or groups, by name. ``make``: of a name, over some of them."""
    names = list(dict.fromkeys(map(optimizer_of, groups))) or [OWN]
    return {name: make(name, _without_name([g for g in groups if optimizer_of(g) == name])) for name in names}


def together(
    groups: Sequence[torch.Tensor | dict[str, Any]],
    make: Callable[[str, list[torch.Tensor | dict[str, Any]]], torch.optim.Optimizer],
) -> torch.optim.Optimizer:
    """One optimizer over these parameters or groups, made as those of ``apart``."""
    parts = apart(groups, make)
    if len(parts) == 1:
        return next(iter(parts.values()))
    return Several([*parts.values()], [[*parts].index(optimizer_of(group)) for group in groups])


def _without_name(groups: Sequence[torch.Tensor | dict[str, Any]]) -> list[torch.Tensor | dict[str, Any]]:
    return [{k: v for k, v in x.items() if k != OPTIMIZER} if isinstance(x, dict) else x for x in groups]

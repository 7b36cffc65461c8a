"""An exponential moving average of a layer's weights: state like any other, which every copy of the layer has."""

# It begins with the weights after the first step that it sees, and after each later one
#
#     average = decay * average + (1 - decay) * weight
#
# as torch.optim.swa_utils has it. Every holder of a layer takes the same steps, so all averages have the same bits. A
# step that is skipped changes none.
#
# An average has float32 or more: with a decay of 0.999 no change would ever reach one of 16 bits.

from collections.abc import Callable, Iterable, Iterator

import torch
from torch.optim.swa_utils import get_ema_avg_fn

from culm.pipeline.checkpoints.layer_file import AVERAGE
from culm.pipeline.user_code.entries import entries_of

PARAMETER = "parameter."


class Average:
    """Of one layer."""

    def __init__(self, module: torch.nn.Module, decay: float) -> None:
        """A parameter that is frozen, or in no state dict, has no average."""
        kept = {n.removeprefix(PARAMETER): p for n, p in entries_of(module).items() if n.startswith(PARAMETER)}
        trained = {name: parameter for name, parameter in kept.items() if parameter.requires_grad}
        # Each parameter by the first of its names in the state dict, and that one of every name.
        first: dict[int, str] = {}
        self._first_names = {name: first.setdefault(id(parameter), name) for name, parameter in trained.items()}
        self._weights = {name: trained[name] for name in first.values()}
        self._mix = get_ema_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._tensors: dict[str, torch.Tensor] = {}  # empty before the first step

    @torch.no_grad()
    def update(self) -> None:
        """The weights have changed."""
        if self._tensors:
            mixed = {n: self._mix(x, self._weights[n].to(x.dtype), torch.tensor(0)) for n, x in self._tensors.items()}
        else:
            mixed = {n: w.detach().to(average_dtype(w.dtype), copy=True) for n, w in self._weights.items()}
        self._tensors = mixed  # not written over: the tensors of before may be lent

    def move(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._tensors = {name: move(tensor) for name, tensor in self._tensors.items()}

    def entries(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors themselves, by every name in the state dict: under each an export puts it for the weight."""
        names = self._first_names.items() if self._tensors else ()
        return ((f"{AVERAGE}.{name}", self._tensors[first]) for name, first in names)

    def install(self, entries: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Takes over what ``entries`` gave elsewhere; of a run without averages there are none, and it begins anew."""
        given = dict(entries)
        own = {name: given.get(f"{AVERAGE}.{name}") for name in self._weights}
        found = {name: tensor for name, tensor in own.items() if tensor is not None}
        whole = len(found) == len(own)
        self._tensors = {n: t.to(self._weights[n].device, copy=True) for n, t in found.items()} if whole else {}


def average_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of the average of a parameter of that dtype."""
    return torch.promote_types(dtype, torch.float32)

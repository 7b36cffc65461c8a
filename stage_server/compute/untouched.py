"""Whether a stage's layers leave alone what no forward or backward may touch: parameters, and generators in a backward.

``culm run`` tries that before anything starts, on one microbatch. Here it shows of layers that do so only later, and
where services are started by hand.
"""

# Each comparison has its price, so it is made where it costs next to nothing:
#
#     versions and addresses    of parameters, after every forward and backward: a write that torch counts, other memory
#     checksums                 of parameters, around a stage's first forward: writes through .data count no version
#     torch's generators        after every backward: microseconds
#     numpy's generator         after a stage's first backward: a tenth of a millisecond
#     Python's generator        never: libraries draw from it on other threads, as object storages' do between tries

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from culm.pipeline.tensors.bits import checksum
from culm.pipeline.user_code.streams import drawn_between, numpy_states, torch_states
from culm.pipeline.user_code.trial import changes_parameter, draws_in_backward, gives_sparse
from culm.stage_server.compute.layer import HeldLayer


class Seen(NamedTuple):
    """What was seen before a forward or backward. ``places``: version and address of each parameter."""

    places: list[tuple[int, int]]
    sums: list[torch.Tensor]
    generators: dict[str, Any]


class Untouched:
    """Of one stage. Raises JobError where user code has touched what is not its own."""

    def __init__(self, layers: Sequence[HeldLayer]) -> None:
        named = [(layer, name, p) for layer in layers for name, p in layer.module.named_parameters()]
        self._parameters = [parameter for _, _, parameter in named]
        self._owners = [(layer, name) for layer, name, _ in named]
        self._whole = _range(layers)
        self._after_forward = self._after_backward = False  # whether one has been compared

    def before_forward(self) -> Seen:
        sums = [] if self._after_forward else [checksum(p) for p in self._parameters]
        return Seen(self._places(), sums, {})

    def refuse_after_forward(self, before: Seen) -> None:
        self._refuse_changes(before)
        if before.sums:
            now = [checksum(p) for p in self._parameters]
            same = (torch.stack(before.sums) == torch.stack(now)).tolist()  # one wait for the device
            if not all(same):
                self._refuse(same.index(False))
        self._after_forward = True

    def before_backward(self) -> Seen:
        return Seen(self._places(), [], torch_states() | ({} if self._after_backward else numpy_states()))

    def refuse_after_backward(self, before: Seen, whole: bool = True) -> None:
        """``whole``: false after the first half of a backward that is split."""
        self._refuse_changes(before)
        now: dict[str, Any] = {**torch_states()}
        if "numpy's" in before.generators:
            now |= numpy_states()
        if now != before.generators:
            drawn = drawn_between(before.generators, now)
            raise draws_in_backward(f"a backward of {self._whole}", drawn, "model.layers")
        self._after_backward = self._after_backward or whole

    def refuse_sparse(self, fresh: Iterable[torch.nn.Parameter]) -> None:
        """``fresh``: parameters that have their step's first gradient."""
        for parameter in fresh:
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                layer, name = next(o for o, p in zip(self._owners, self._parameters, strict=True) if p is parameter)
                raise gives_sparse(_words(layer), name)

    def _places(self) -> list[tuple[int, int]]:
        # On a card memory may be exchanged for memory of the same values, as an LSTM's flatten_parameters does.
        return [(p._version, p.data_ptr() if p.is_cpu else 0) for p in self._parameters]

    def _refuse_changes(self, before: Seen) -> None:
        now = self._places()
        if now != before.places:
            self._refuse(next(i for i, place in enumerate(now) if place != before.places[i]))

    def _refuse(self, number: int) -> None:
        layer, name = self._owners[number]
        raise changes_parameter(_words(layer), name)


def _words(layer: HeldLayer) -> str:
    return f"layer {layer.index} ({type(layer.module).__name__})"


def _range(layers: Sequence[HeldLayer]) -> str:
    return _words(layers[0]) if len(layers) == 1 else f"one of the layers {layers[0].index} to {layers[-1].index}"

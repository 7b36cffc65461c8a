"""Whether a stage's layers leave alone what no forward or backward may touch: parameters, and generators in a backward.

``culm run`` tries that before anything starts, on one microbatch. Here it shows of layers that do so only later, and
where services are started by hand.
"""

# Each comparison has its price, so it is made where it costs next to nothing. None has to come before the step's end: a
# step in which something is refused is not committed.
#
#     versions of parameters    after every forward and backward: a write that torch counts. The next backward would
#                               raise in other words
#     versions and addresses    of parameters, after the step's last backward: other memory too
#     checksums                 of parameters, around a stage's first forward: writes through .data count no version
#     torch's generators        around the step's first backward: looking takes 40 microseconds, and for the last one
#                               the stage before waits
#     numpy's generator         around a stage's first backward of all: a tenth of a millisecond
#     Python's generator        never: libraries draw from it on other threads, as object storages' do between tries

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch

from culm.pipeline.tensors.bits import checksum
from culm.pipeline.user_code.refusals import changes_parameter, draws_in_backward, gives_sparse
from culm.pipeline.user_code.streams import drawn_between, numpy_states, torch_states
from culm.stage_server.compute.layer import HeldLayer

_version = attrgetter("_version")  # asked of every parameter after each forward and backward


class Untouched:
    """Of one stage. Raises JobError where user code has touched what is not its own."""

    def __init__(self, layers: Sequence[HeldLayer]) -> None:
        named = [(layer, name, p) for layer in layers for name, p in layer.module.named_parameters()]
        self._parameters = [parameter for _, _, parameter in named]
        self._owners = [(layer, name) for layer, name, _ in named]
        self._whole = _range(layers)
        self._places: list[tuple[int, int]] = []  # version and address of each parameter, as the step began
        self._versions = 0  # all of them together: none ever falls
        self._sums: list[torch.Tensor] | None = []  # before the first forward; None once that has been compared
        self._generators: dict[str, Any] | None = None  # before the step's first backward
        self._after_backward = False  # whether one has been compared

    def begin_step(self) -> None:
        """From now on nothing may change before the step is applied."""
        self._places = self._places_now()
        self._versions = sum(map(_version, self._parameters))

    def before_forward(self) -> None:
        if self._sums is not None:
            self._sums = [checksum(p) for p in self._parameters]

    def refuse_after_forward(self) -> None:
        self.refuse_writes()
        if self._sums:
            now = [checksum(p) for p in self._parameters]
            same = (torch.stack(self._sums) == torch.stack(now)).tolist()  # one wait for the device
            if not all(same):
                self._refuse(same.index(False))
        self._sums = None

    def refuse_writes(self) -> None:
        """After a forward or a backward."""
        if sum(map(_version, self._parameters)) != self._versions:
            self._refuse_changes()

    def before_first_backward(self) -> None:
        """``refuse_draws`` is to follow, or the other half of the backward."""
        self._generators = torch_states() | ({} if self._after_backward else numpy_states())

    def refuse_after_last_backward(self) -> None:
        """What ``refuse_writes`` does not see."""
        self._refuse_changes()

    def refuse_draws(self, whole: bool = True) -> None:
        """After the step's first backward. ``whole``: false after the first half of one that is split."""
        assert self._generators is not None, "nothing was looked at before"
        now: dict[str, Any] = {**torch_states()}
        if "numpy's" in self._generators:
            now |= numpy_states()
        if now != self._generators:
            drawn = drawn_between(self._generators, now)
            raise draws_in_backward(f"a backward of {self._whole}", drawn, "model.layers")
        self._generators = None
        self._after_backward = self._after_backward or whole

    def refuse_sparse(self, fresh: Iterable[torch.nn.Parameter]) -> None:
        """``fresh``: parameters that have their step's first gradient."""
        for parameter in fresh:
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                layer, name = next(o for o, p in zip(self._owners, self._parameters, strict=True) if p is parameter)
                raise gives_sparse(_words(layer), name)

    def _places_now(self) -> list[tuple[int, int]]:
        # On a card memory may be exchanged for memory of the same values, as an LSTM's flatten_parameters does.
        return [(p._version, p.data_ptr() if p.is_cpu else 0) for p in self._parameters]

    def _refuse_changes(self) -> None:
        now = self._places_now()
        if now != self._places:
            self._refuse(next(i for i, place in enumerate(now) if place != self._places[i]))

    def _refuse(self, number: int) -> None:
        layer, name = self._owners[number]
        raise changes_parameter(_words(layer), name)


def _words(layer: HeldLayer) -> str:
    return f"layer {layer.index} ({type(layer.module).__name__})"


def _range(layers: Sequence[HeldLayer]) -> str:
    return _words(layers[0]) if len(layers) == 1 else f"one of the layers {layers[0].index} to {layers[-1].index}"

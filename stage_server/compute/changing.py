"""The buffers that a layer's forwards change: each forward has tensors of its own for them."""

# A graph keeps the very tensors that its forward has read. Plain PyTorch runs a microbatch's backward before the next
# forward, which may then write into a buffer. A pipeline runs forwards ahead:
#
#     F0          reads the buffer; the graph of 0 keeps it
#     F1          writes into it
#     B0          torch raises, since its version has changed; or it computes with numbers of F1, where torch does not
#                 look: what is written through .data has no version
#
# So before a forward each buffer that forwards have changed is exchanged for a copy, which that forward may write into.
# All buffers of its module go with it, but for large ones: mostly it is a count there that tells a forward when to
# change the others.
#
# Which they are the first forward shows. Later ones show those whose version changes, too late for graphs that wait for
# their backward: torch refuses these. The end of a step shows the others, and no gradient of that step may count.
#
# A buffer may also lie in the memory of the forward's output or input, where the forward puts another tensor in its
# place. A node sends these and keeps them for an heir, and it writes into buffers where a step begins. So the buffer
# gets memory of its own.

from collections.abc import Collection, Sequence

import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.tensors.bits import same_bits
from culm.pipeline.tensors.layout import copy_of, in_one_memory
from culm.pipeline.user_code.buffer_places import Places, in_norms, put
from culm.pipeline.user_code.refusals import changes_buffer

LARGE = 1 << 24  # bytes; one that does not change, such as a mask, is not worth a copy for every forward


class ChangingBuffers:
    """Of one layer."""

    def __init__(self, index: int, module: nn.Module, places: Places) -> None:
        """``places``: of each buffer, by name. Other tensors may come to lie there."""
        self._name = f"layer {index} ({type(module).__name__})"
        kept = in_norms(module)
        self._places = {name: where for name, where in places.items() if name not in kept}
        self.may_change = bool(self._places)  # else there is nothing to do around a forward
        self._exchanged: set[str] = set()
        self._first: dict[str, torch.Tensor] | None = {}  # values before the first forward; None once it has run
        self._before: list[tuple[str, torch.Tensor, int]] = []  # the forward that runs, with their versions

    def begin_forward(self) -> None:
        """A forward is about to run."""
        for name in self._exchanged:
            put(self._places[name], copy_of(self._at(name)))
        self._before = [(name, buffer, buffer._version) for name in self._places for buffer in [self._at(name)]]
        if self._first is not None:
            self._first = {name: buffer.clone() for name, buffer, _ in self._before}

    def end_forward(self, output: Sequence[torch.Tensor]) -> None:
        """It is over. ``output``: the tensors that it gave."""
        replaced = {name for name, buffer, _ in self._before if self._at(name) is not buffer}
        changed = {name for name, buffer, version in self._before if buffer._version != version} | replaced
        if self._first is not None:  # writes through .data count no version
            changed |= {name for name, value in self._first.items() if not same_bits(value, self._at(name))}
        self._first, self._before = None, []
        for name in changed - self._exchanged:
            self._exchanged |= self._beside(name)
        for name in self._exchanged:
            buffer = self._at(name)
            if name in replaced or any(in_one_memory(buffer, tensor) for tensor in output):
                put(self._places[name], buffer.clone())

    @property
    def changes(self) -> bool:
        """Whether forwards have changed any, as far as it shows."""
        return bool(self._exchanged)

    def not_exchanged(self) -> set[str]:
        """Buffers that no forward so far has changed, as far as it shows."""
        return self._places.keys() - self._exchanged

    def refuse_late(self, changed: Collection[str]) -> None:
        """Raises JobError where a backward may have read what a later forward wrote. ``changed``: within the step."""
        late = sorted(self.not_exchanged().intersection(changed))
        if late:
            what = f"{self._name} changes its buffer {late[0]} through .data, but did not in its first forward"
            mend = "write into it without .data, under torch.no_grad(): this step's gradients may be wrong"
            raise JobError(what, "model.layers", mend)

    def _at(self, name: str) -> torch.Tensor:
        buffers, key = self._places[name][0]
        if key not in buffers or (buffer := buffers[key]) is None:  # a scripted module's have no ``get``
            raise changes_buffer(self._name, name)
        return buffer

    def _beside(self, name: str) -> set[str]:
        """It, and all other buffers of the modules that have it, unless they are large."""
        modules = {id(buffers) for buffers, _ in self._places[name]}
        beside = {other for other, where in self._places.items() if any(id(buffers) in modules for buffers, _ in where)}
        return {name, *(other for other in beside if self._at(other).nbytes <= LARGE)}

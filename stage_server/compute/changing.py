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
# Which they are the first forward shows. Later ones show those whose version changes, too late for graphs that wait for
# their backward: torch refuses these.

import logging
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import nn

from culm.pipeline.tensors.layout import copy_of

log = logging.getLogger("culm.changing")

Place = tuple[dict[str, torch.Tensor | None], str]  # what keeps a buffer, and under which key

# Their statistics have no part in a backward: torch writes into them without counting a version.
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


class ChangingBuffers:
    """Of one layer."""

    def __init__(self, index: int, module: nn.Module, places: Mapping[str, Sequence[Place]]) -> None:
        """``places``: of each buffer, by name. Other tensors may come to lie there."""
        self._index = index
        self._module = module
        read = {id(b) for m in module.modules() if type(m) not in NORMS for b in m._buffers.values() if b is not None}
        named = dict(module.named_buffers())
        self._places = {name: where for name, where in places.items() if id(named[name]) in read}
        self._changing: set[str] = set()
        self._first: dict[str, torch.Tensor] | None = None  # values before the first forward, while it runs
        self._has_run = False
        self._versions: list[tuple[str, torch.Tensor, int]] = []  # before the forward that runs, of the others

    def begin_forward(self) -> None:
        """A forward is about to run."""
        if not self._places:
            return
        for name in self._changing:
            own = copy_of(self._at(name))
            for module, key in self._places[name]:
                module[key] = own
        others = [(name, self._at(name)) for name in self._places if name not in self._changing]
        self._versions = [(name, buffer, buffer._version) for name, buffer in others]
        if not self._has_run:
            self._first = {name: buffer.clone() for name, buffer in others}

    def end_forward(self) -> None:
        """It is over."""
        if not self._places:
            return
        written = [name for name, buffer, version in self._versions if buffer._version != version]
        replaced = [name for name, buffer, _ in self._versions if self._at(name) is not buffer]
        found = {*written, *replaced}
        if self._first is not None:  # writes through .data count no version
            found |= {name for name, before in self._first.items() if not _equal(before, self._at(name))}
            self._has_run, self._first = True, None
        self._versions = []
        for name in found:
            self._add(name)

    def changed(self, names: Collection[str]) -> None:
        """The step's forwards have changed these buffers."""
        for name in names:
            if name in self._places and name not in self._changing:
                self._add(name)
                log.warning(
                    "layer %d (%s) has begun to change its buffer %s through .data: gradients of this step are wrong "
                    "if its backward needs that buffer; write into it without .data",
                    *(self._index, type(self._module).__name__, name),
                )

    def _at(self, name: str) -> torch.Tensor:
        module, key = self._places[name][0]
        buffer = module[key]
        assert buffer is not None, f"the buffer {name} was taken away"
        return buffer

    def _add(self, name: str) -> None:
        """Its tensor is exchanged from now on, unless the layer would go on with the old one as well."""
        if self._has_another_name(self._at(name)):
            del self._places[name]
        else:
            self._changing.add(name)

    def _has_another_name(self, buffer: torch.Tensor) -> bool:
        """Whether a module keeps its memory also as an attribute, which would still name the old one."""
        if buffer.layout is not torch.strided:
            return True
        memory = buffer.untyped_storage().data_ptr()
        kept = (x for m in self._module.modules() for y in (vars(m), m._buffers, m._parameters) for x in y.values())
        tensors = (x for x in kept if isinstance(x, torch.Tensor) and x is not buffer and x.layout is torch.strided)
        return any(x.untyped_storage().data_ptr() == memory for x in tensors)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)

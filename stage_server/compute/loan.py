"""A layer's state on its way to another node, or into a checkpoint: read from live memory while training goes on."""

# One loan of a layer at version 7, whose commit comes while half of it is read:
#
#     reading thread                        compute thread
#      │ pieces 0, 1 from live memory        │ forwards and backwards: they change no parameter
#      │                                     │ commit: ``keep`` copies what lies from piece 2 on
#      │ pieces 2, 3 from the copy           │ the optimizer changes the layer: version 8
#
# So a loan costs memory only for what a commit overtakes, and nobody waits for a slow reader. Each piece is read under
# the loan's lock, so ``keep`` waits for one piece at most. A node being seeded reads once, in order, by ``chunks``. A
# checkpoint reads by ``read``, in the order of its files, and again where the storage fails. So until it calls ``end``
# all of it is still to be read.

import threading
from collections.abc import Iterator

import torch

from culm.pipeline.tensors.raw import bytes_of
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import CHUNK_BYTES, Part, pieces


class Loan:
    """State at one version, in the host's memory.

    Whoever is to change the lent tensors calls ``keep`` first: only then they are copied. One thread reads; another one
    may call ``keep`` at any time.
    """

    def __init__(self, value: Value) -> None:
        self.value = value  # for its names, dtypes and shapes; once kept, its content is of a later version
        # What does not lie end to end is copied as a whole anyway, so it is copied once and now.
        self._tensors = [t.detach().contiguous() for _, t in value.tensors]
        self._lock = threading.Lock()
        self._first = 0  # the tensor of the newest piece; those before it have been read
        self._live = True  # ``_tensors`` may be the lender's own memory

    @property
    def live(self) -> bool:
        """Whether some of it is still to be read from the lender's memory."""
        return self._live

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, bytes]]:
        """``(offset, bytes)`` as of ``culm.pipeline.tensors.wire.chunks``. Ends the loan, read to its end or not."""
        try:
            sizes = [t.numel() * t.element_size() for t in self._tensors]
            for offset, parts in pieces(sizes, chunk_bytes):
                yield offset, self._read(parts)
        finally:
            self.end()

    def read(self, place: int, start: int, end: int) -> bytes:
        """These bytes of one tensor, as it lies end to end. ``place``: the tensor's, in the value."""
        with self._lock:
            return bytes(bytes_of(self._tensors[place])[start:end])

    def end(self) -> None:
        """Nothing is read any more, so nothing has to be kept."""
        with self._lock:
            self._live = False
            self._tensors.clear()

    def _read(self, parts: list[Part]) -> bytes:
        with self._lock:
            if parts:
                self._first = parts[0].tensor
            return b"".join(bytes_of(self._tensors[p.tensor])[p.start : p.end] for p in parts)

    def keep(self) -> None:
        """Copies what has not been read yet: its memory is about to change."""
        with self._lock:
            if self._live:
                for i in range(self._first, len(self._tensors)):
                    self._tensors[i] = _copy(self._tensors[i])
                self._live = False


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)

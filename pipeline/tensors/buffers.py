"""Memory for large tensors that arrive, used again and again: getting fresh pages costs more than all copying."""

import mmap
import weakref
from collections import defaultdict, deque

import numpy as np
import numpy.typing as npt

from culm.pipeline.tensors.layout import ALIGNMENT

Bytes = npt.NDArray[np.uint8]
Memory = bytearray | mmap.mmap

SMALLEST = 1 << 20  # bytes; the allocator keeps smaller pieces at hand anyway
KEPT = 1 << 29  # bytes that may lie unused
# From so many bytes on the system gives memory page by page, as it is written: a header that names bytes takes none
# before they come (rule 18).
BY_PAGE = 1 << 25


class Buffers:
    """Any thread may take; memory comes back by itself when nothing refers to the array any more."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._unused = 0
        self._free: dict[int, deque[Memory]] = defaultdict(deque)  # by size

    def take(self, size: int) -> Bytes:
        """[size], with anything in it, at an address where torch would put a tensor."""
        whole = -(-size // SMALLEST) * SMALLEST + (ALIGNMENT if size < BY_PAGE else 0)
        try:  # one atomic pop: between asking and taking another thread could come
            memory = self._free[whole].pop()
            self._unused -= whole
        except IndexError:
            memory = (
                bytearray(whole) if whole < BY_PAGE else mmap.mmap(-1, whole, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            )
        start = -np.frombuffer(memory, np.uint8).ctypes.data % ALIGNMENT
        array = np.frombuffer(memory, np.uint8, size, start)
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array

    @property
    def unused(self) -> int:
        """Bytes that wait for the next tensor."""
        return self._unused

    def _give_back(self, memory: Memory) -> None:
        # Takes no lock: this runs wherever the last reference goes, also in the middle of ``take``.
        if self._unused + len(memory) <= self._kept:
            self._unused += len(memory)
            self._free[len(memory)].append(memory)

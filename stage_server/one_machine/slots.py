"""Memory that the two ends of a stream share where both run on one machine; what lies in it need not go over the wire.

The sender copies a piece of a tensor into a free slot and names the slot on the stream; the receiver copies it out and
gives the slot back. The memory has no name in any file system: it is gone with the last process that maps it, however
that one ends. Every stream has slots of its own, so that nothing of a broken stream is ever written over.

Nothing else depends on it: where it is refused, or deleted with this folder, the stream takes every piece.
"""

# A slot's life. Credits bound what is under way: the sender never writes into a slot that the receiver may read.
#
#     sender                                       receiver
#      │ Hello: pid, file, secret ────────────────▶│ opens /proc/PID/fd/FILE read-only, compares the secret
#      │ ◀── opened ───────────────────────────────┤ or says nothing: then every piece goes over the stream
#      │ takes a free slot, writes a piece into it │
#      │ the piece's key and slot, on the stream ─▶│ copies the piece out
#      │ ◀── the slot's number ────────────────────┤
#      │ the slot is free again                    │
#
# The secret tells apart what looks alike: two containers may have processes of one number, and their host names in
# common. Whoever can open another process's file under /proc is the same user on the same kernel, or root.
#
# The order of pieces is the stream's, since each slot is named on it. So nothing of the protocol depends on slots.

import mmap
import os
import secrets
import stat
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from culm.pipeline.tensors.wire import CHUNK_BYTES
from culm.protos import stage_pb2, tensor_pb2

SLOTS = 16  # of CHUNK_BYTES each: pieces that are written while the receiver has not copied the first one out yet
HEAD = mmap.PAGESIZE  # bytes before the first slot; they begin with the secret
LEAST = 1 << 15  # bytes of a piece from which a slot is faster than the stream
SECRET = 16  # bytes; nobody guesses them

Bytes = npt.NDArray[np.uint8]


def of_one_machine(address: str, other: str) -> bool:
    """Whether two addresses (``host:port``) name the same host, and this system can share memory without a file."""
    return hasattr(os, "memfd_create") and address.rpartition(":")[0] == other.rpartition(":")[0]


class Slots:
    """The sender's end. Nothing is put in before the receiver says that it can read it."""

    def __init__(self) -> None:
        """Raises OSError where the system gives no such memory."""
        size = HEAD + SLOTS * CHUNK_BYTES  # address space: what is never written takes no memory
        self._file = os.memfd_create("culm-slots")
        os.ftruncate(self._file, size)
        self._map = mmap.mmap(self._file, size)
        self._bytes = np.frombuffer(self._map, np.uint8)
        secret = self._map[:SECRET] = secrets.token_bytes(SECRET)
        # What the receiver is told. Made here, since the stream may break, and close the file, before it is told.
        self.memory = stage_pb2.Memory(pid=os.getpid(), file=self._file, secret=secret)
        self._lock = threading.Lock()  # taken as it is where nobody has to be waited for
        self._changed = threading.Condition(self._lock)
        # None before the receiver has opened the memory, and once it is closed: all pieces go over the stream then.
        # Taken from the end: a slot that was used last is the likeliest to be in the processor's cache.
        self._free: list[int] | None = None
        # Invariant: the slots that the receiver may be reading; with the free ones they are all slots, each once.
        self._lent: set[int] = set()

    def opened(self) -> None:
        """The receiver can read it."""
        with self._lock:
            self._free = list(range(SLOTS))

    @property
    def has_free(self) -> bool:
        """Whether ``put`` would not wait now."""
        return bool(self._free)

    def put(self, payload: Sequence[memoryview]) -> int | None:
        """The slot that the piece is in now; waits for a free one. None: the piece has to go over the stream."""
        size = sum(map(len, payload))
        if not LEAST <= size <= CHUNK_BYTES:
            return None
        with self._lock:
            while self._free is not None and not self._free:
                self._changed.wait()
            if self._free is None:
                return None
            slot = self._free.pop()
            self._lent.add(slot)
        at = HEAD + slot * CHUNK_BYTES
        for part in payload:
            self._bytes[at : at + len(part)] = np.frombuffer(part, np.uint8)  # lets other threads run meanwhile
            at += len(part)
        return slot

    def give_back(self, slots: Iterable[int]) -> None:
        """The receiver has copied these out. Raises ValueError for one that it was not given: of two pieces in one
        slot the first would be read as the second.
        """
        with self._lock:
            if self._free is None:
                return
            for slot in slots:
                if slot not in self._lent:
                    raise ValueError(f"the peer gives back slot {slot}, which was not in use")
                self._lent.discard(slot)
                self._free.append(slot)
            self._changed.notify()

    def close(self) -> None:
        """The stream has ended. Whoever waits for a slot waits no longer."""
        # The mapping stays until nobody uses it: another thread may be writing a piece into it at this moment.
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._free = -1, None
            self._changed.notify()


class SharedSlots:
    """The receiver's end."""

    def __init__(self, memory: stage_pb2.Memory) -> None:
        """Raises OSError or ValueError where the memory cannot be read from here, as in another container."""
        size = HEAD + SLOTS * CHUNK_BYTES
        file = os.open(f"/proc/{memory.pid}/fd/{memory.file}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)  # O_NONBLOCK above: a number of another process may be a pipe
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise ValueError("that file descriptor is another file")
            self._map = mmap.mmap(file, size, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        if not secrets.compare_digest(self._map[:SECRET], memory.secret):
            raise ValueError("it is the memory of another process, which lacks the secret")
        self._view = memoryview(self._map)

    def read(self, piece: tensor_pb2.Slot) -> memoryview:
        """A piece in its place: to be copied before the slot is given back. Raises ValueError if there is no such."""
        if piece.number >= SLOTS or piece.size > CHUNK_BYTES:
            raise ValueError(f"no slot {piece.number} of {piece.size} bytes")
        at = HEAD + piece.number * CHUNK_BYTES
        return self._view[at : at + piece.size]

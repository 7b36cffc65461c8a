"""What a process has taken of the CPU and of memory, as Linux tells it."""

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

PEAK_ONLY = "5"  # what /proc/self/clear_refs takes for "the peak begins anew"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """Bytes that are in memory now, and the most that were at once."""

    anonymous: int = 0  # the process's own
    shared: int = 0  # with other processes, without a file
    resident: int = 0  # both of these, and what is mapped of files
    peak: int = 0  # of ``resident``

    def most(self, other: "Memory") -> "Memory":
        """The most of each."""
        return Memory(
            anonymous=max(self.anonymous, other.anonymous),
            shared=max(self.shared, other.shared),
            resident=max(self.resident, other.resident),
            peak=max(self.peak, other.peak),
        )


def read_memory(status: str) -> Memory:
    """Of the text of /proc/PID/status."""
    told = dict(line.split(":", 1) for line in status.splitlines())

    def size(name: str) -> int:
        return int(told[name].split()[0]) * 1024

    return Memory(anonymous=size("RssAnon"), shared=size("RssShmem"), resident=size("VmRSS"), peak=size("VmHWM"))


def memory(pid: int) -> Memory:
    return read_memory(Path(f"/proc/{pid}/status").read_text())


def reset_peak() -> None:
    """This process's own peak begins anew at what is in memory now."""
    Path("/proc/self/clear_refs").write_text(PEAK_ONLY)


class _Heap(ctypes.Structure):
    """``struct mallinfo2`` of glibc, 2.33 or later."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


def heap_in_use() -> int:
    """Bytes that this process has from the C library and has not freed. The rest of its heap the library keeps."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Heap
    found = library.mallinfo2()
    return int(found.uordblks) + int(found.hblkhd)

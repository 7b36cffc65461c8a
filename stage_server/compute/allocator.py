"""The C library's memory for tensors that come and go.

glibc gives freed pages back to the system and takes them again, page fault by page fault: while tensors are received
that costs more than all copying.
"""

import ctypes
import logging

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = 1 << 30  # bytes that stay with the process though they are free
MAPPED = 1 << 25  # bytes from which an allocation has pages of its own

log = logging.getLogger("culm.allocator")


def keep_pages() -> None:
    """Has freed memory stay with this process; does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not (mallopt(M_TRIM_THRESHOLD, KEPT) and mallopt(M_MMAP_THRESHOLD, MAPPED)):
        log.info("this C library gives freed memory back: receiving tensors takes more of the CPU")

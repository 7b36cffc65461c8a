"""The C library's memory for tensors that come and go.

glibc gives freed pages back to the system and takes them again, page fault by page fault: while tensors are received
that costs more than all copying. So freed pages stay. glibc also has a heap for nearly each thread, and what one thread
has freed in its heap no other thread gets: with a stream from and to each peer that was more memory than all gradients.
So the threads share a few heaps.
"""

import ctypes
import logging

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT = 1 << 30  # bytes that stay with the process though they are free
MAPPED = 1 << 25  # bytes from which an allocation has pages of its own
HEAPS = 2  # threads seldom meet there: what is large they copy without its lock

log = logging.getLogger("culm.allocator")


def keep_pages() -> None:
    """Has freed memory stay with this process, for all its threads; does nothing where the C library is not glibc.

    Called before there are threads: those that there are have their heaps already.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = ((M_TRIM_THRESHOLD, KEPT), (M_MMAP_THRESHOLD, MAPPED), (M_ARENA_MAX, HEAPS))
    if mallopt is None or not all(mallopt(*each) for each in wanted):
        log.info("this C library keeps freed memory in its own way: tensors may take more of the CPU, or of memory")

"""The C library's heaps: a process of its own counts them, since they stay with a process for good."""

import ctypes
import subprocess
import sys

import pytest

from culm.stage_server.compute.allocator import HEAPS

# Eight threads, each of which has memory of its own while the others have theirs.
COUNTS = """
import ctypes, sys, threading
from culm.stage_server.compute.allocator import keep_pages
if sys.argv[1] == "few":
    keep_pages()
library, together = ctypes.CDLL(None), threading.Barrier(8)
def take():
    held = bytearray(100_000)
    together.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
library.fopen.restype = ctypes.c_void_p
library.fopen.argtypes = ctypes.c_char_p, ctypes.c_char_p
library.malloc_info.argtypes = ctypes.c_int, ctypes.c_void_p
library.fclose.argtypes = (ctypes.c_void_p,)
file = library.fopen(b"/dev/stdout", b"w")
library.malloc_info(0, file)
library.fclose(file)
"""


def heaps(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNTS, how], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="this C library is not glibc")
def test_threads_share_a_few_heaps() -> None:
    assert heaps("few") <= HEAPS < heaps("as usual")

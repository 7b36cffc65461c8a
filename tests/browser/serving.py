"""``culm ui`` as a process, for as long as a test needs it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from culm.local.ports import free_port, is_free

ROOT = Path(__file__).parents[2]


@contextmanager
def dashboard(*words: str) -> Iterator[str]:
    """Its address, once it serves pages. ``words``: what it shows."""
    port = free_port()
    command = [sys.executable, "-m", "culm", "ui", *words, "--listen", f"127.0.0.1:{port}"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while is_free(port):
            assert server.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()

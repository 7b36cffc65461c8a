"""How good the weights in a checkpoint are: a file beside the manifest, since it may be known only later."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress

from culm.pipeline.checkpoints import storage

FILE = "evaluation.json"
MOST_BYTES = 1 << 16


def write(folder: str, found: Mapping[str, float]) -> None:
    """``found``: by name, ``loss`` among them. Raises OSError."""
    told = json.dumps({name: number.hex() for name, number in found.items()}, indent=1)
    storage.put(folder, FILE, [told.encode()])


def read(folder: str) -> dict[str, float]:
    """Empty where there is none, or none that can be read: nothing but what is kept depends on it. Raises OSError."""
    with suppress(FileNotFoundError, ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        content = json.loads(storage.read(folder, FILE, MOST_BYTES))
        return {str(name): float.fromhex(number) for name, number in content.items()}
    return {}


def in_words(found: Mapping[str, float]) -> str:
    """``loss 0.41, accuracy 0.8``."""
    return ", ".join(f"{name} {number:.4g}" for name, number in found.items())


def finite(found: Mapping[str, float]) -> dict[str, float | None]:
    """As JSON has it, which knows no NaN."""
    return {name: number if math.isfinite(number) else None for name, number in found.items()}

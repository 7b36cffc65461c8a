"""Where a local run keeps its logs: a folder of its own under ``runs/``, in the folder where it was started."""

import os
from pathlib import Path

from culm.pipeline.errors import JobError

RUNS = Path("runs")


def refuse_read_only() -> None:
    """Raises JobError where this process may not write there. Asked before anything that is slow."""
    there = RUNS if RUNS.exists() else Path()
    if not os.access(there, os.W_OK | os.X_OK):
        raise not_writable(there, "permission denied")


def not_writable(folder: Path, why: str) -> JobError:
    what = f"the run's logs cannot be written there: {why[:1].lower()}{why[1:]}"
    return JobError(what, str(folder.absolute()), "start from a folder that you may write")

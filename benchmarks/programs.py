"""Programs that a benchmark runs beside Culm, such as torch's own ways of training."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_TOLD = 4000  # characters of what a program that failed had written last


def told_by(words: Sequence[str], environment: Mapping[str, str] | None = None, limit: float | None = None) -> str:
    """The last line that a program writes to its standard output, run in the repository's root.

    ``limit``: seconds, after which it raises TimeoutExpired. Raises CalledProcessError where the program fails, with a
    note: what it wrote to its standard error last.
    """
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=limit
        )
    except subprocess.CalledProcessError as error:
        error.add_note(f"it wrote:\n{error.stderr[-MOST_TOLD:]}")
        raise
    return done.stdout.strip().split("\n")[-1]

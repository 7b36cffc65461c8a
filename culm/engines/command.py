"""A command of the cluster, such as ``sbatch`` or ``kubectl``: what it prints, or in one line why it does not."""

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping

from culm.pipeline.errors import JobError
from culm.pipeline.text import plain


def run(
    words: list[str],
    *,
    where: str,
    mend: str,
    who: str = "",
    seconds: float,
    allowed: str = "",
    variables: Mapping[str, str] | None = None,
) -> str:
    """What it prints; nothing where it fails and ``allowed`` is part of what it says.

    Raises JobError with its last line where it refuses, and with ``mend`` where it cannot be run or does not answer in
    so many seconds. ``who``: what the error calls it; by default the command itself.
    """
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,  # nobody is there to answer it
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env={**os.environ, **(variables or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise JobError(f"{words[0]} has not answered in {seconds:g} s", where, mend) from error
    except OSError as error:
        raise JobError(f"{words[0]} does not work ({error})", where, mend) from error
    if done.returncode == 0:
        return done.stdout
    if allowed and allowed in done.stderr:
        return ""
    said = last_words(done.stderr.splitlines(), f"code {done.returncode}")
    raise JobError(f"{who or words[0]} refuses: {said}", where, "mend what it says")


def last_words(lines: Iterable[str], none: str = "it said nothing") -> str:
    """The last line that says anything, without its colours."""
    said = ""
    for line in lines:
        said = plain(line).strip() or said
    return said or none


def refusals_of(asked: Iterable[Callable[[], object]]) -> list[JobError]:
    """What these calls raise, each reason once."""
    found: dict[str, JobError] = {}
    for ask in asked:
        try:
            ask()
        except JobError as error:
            found.setdefault(str(error), error)
    return list(found.values())

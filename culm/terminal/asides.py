"""What a command says beside its output, to whoever sits in front of it."""

import sys


def aside(line: str) -> None:
    """Says what the command waits for, if stderr is a terminal: elsewhere nobody waits with it."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)

"""The command line."""

import argparse
import sys
from importlib import import_module

from pipeline.errors import JobError, Unavailable

MODULES = {
    "run": "run",
    "verify": "verify",
    "demo": "demo",
    "status": "status",
    "events": "events",
    "drain": "drain",
    "weights": "weights",
    "health": "health",
    "certs": "certs",
    "checkpoint": "checkpoint",
    "coordinator": "serve",
    "stage": "serve",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command. 0: done. 1: the run failed or differs. 2: bad usage or job file, with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="culm",
        description="Trains one PyTorch model over machines that may vanish at any moment.",
        epilog="try: culm run examples/digits_mlp.toml --kill n1@20:2B1",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    words = sys.argv[1:] if argv is None else argv
    # Only the command's own module: some bring torch, which takes seconds to import.
    wanted = [MODULES[words[0]]] if words and words[0] in MODULES else dict.fromkeys(MODULES.values())
    for module in wanted:
        import_module(f"culm.{module}").add_arguments(commands)
    arguments = parser.parse_args(words)
    sys.path.insert(0, "")  # the current folder is importable, as the job file says
    try:
        code: int = arguments.command(arguments)
    except (JobError, Unavailable, ValueError) as error:
        print(f"culm {words[0]}: {error}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The command line."""

import argparse
import sys
from collections.abc import Iterable
from importlib import import_module

from pipeline.errors import JobError, Unavailable

MODULES = {
    "run": "run",
    "verify": "verify",
    "demo": "demo",
    "up": "up",
    "down": "down",
    "status": "status",
    "events": "events",
    "cost": "cost",
    "prices": "prices",
    "ui": "ui",
    "drain": "drain",
    "weights": "weights",
    "health": "health",
    "certs": "certs",
    "checkpoint": "checkpoint",
    "profile": "profile",
    "simulate": "simulate",
    "plan": "plan",
    "replay": "replay",
    "coordinator": "serve",
    "stage": "serve",
    "doctor": "doctor",
    "completion": "completion",
}


def make_parser(modules: Iterable[str] = ()) -> argparse.ArgumentParser:
    """The parser with the commands of these modules, or all. Imports them: some bring torch, which takes seconds."""
    parser = argparse.ArgumentParser(
        prog="culm",
        description="Trains one PyTorch model over machines that may vanish at any moment.",
        epilog="examples:\n"
        "  culm doctor\n"
        "  culm run examples/digits_mlp.toml --kill n1@20:2B1\n"
        "  culm up examples/digits_mlp.toml",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in modules or dict.fromkeys(MODULES.values()):
        import_module(f"culm.{module}").add_arguments(commands)
    for each in all_parsers(parser):
        each.formatter_class = argparse.RawDescriptionHelpFormatter  # an example that is wrapped cannot be copied
    return parser


def all_parsers(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    """The parser, those of its commands, and of theirs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from all_parsers(inner)


def main(argv: list[str] | None = None) -> int:
    """Runs one command. 0: done. 1: the run failed or differs. 2: bad usage or job file, with one line on stderr."""
    words = sys.argv[1:] if argv is None else argv
    parser = make_parser([MODULES[words[0]]] if words and words[0] in MODULES else [])
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

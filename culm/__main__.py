"""The command line."""

import argparse
import os
import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module

from culm import __version__
from culm.pipeline.errors import JobError, StorageAway, Unavailable
from culm.pipeline.log_lines import last_line
from culm.pipeline.text import closest, told
from culm.terminal import interrupts
from culm.terminal.flags import Parser

# The module of each command. Only the module of the command at hand is imported: some bring torch, which takes seconds.
MODULES = {
    "run": "run",
    "verify": "verify",
    "demo": "demo",
    "up": "up",
    "down": "down",
    "clusters": "clusters",
    "logs": "logs",
    "status": "status",
    "trace": "trace",
    "top": "top",
    "events": "events",
    "cost": "cost",
    "prices": "prices",
    "ui": "ui",
    "add": "add",
    "drain": "drain",
    "pause": "pause",
    "resume": "pause",
    "weights": "weights",
    "health": "health",
    "certs": "certs",
    "checkpoint": "checkpoint",
    "profile": "profile",
    "chunks": "chunks",
    "simulate": "simulate",
    "plan": "plan",
    "replay": "replay",
    "coordinator": "serve",
    "stage": "serve",
    "graph-server": "serve",
    "tensor-worker": "tensor_worker",
    "doctor": "doctor",
    "completion": "completion",
}

NODES = ("stage", "graph-server", "tensor-worker")  # that run the job's code

# Modules that one of the images lacks, since its service needs none of them: deploy/docker/.
NOT_IN_ALL_IMAGES = ("grpc_reflection", "numpy", "redis", "safetensors", "setproctitle", "torch", "xxhash")

# A health check that takes longer has failed in any case. Docker lets it run on, and begins the next one: on a machine
# with too much to do there were soon two hundred of them.
HEALTH_SECONDS = 9


def make_parser(modules: Iterable[str] = ()) -> argparse.ArgumentParser:
    """The parser with the commands of these modules, or of all. Imports the modules."""
    parser = Parser(
        prog="culm",
        description="Trains one PyTorch model on machines that may vanish at any moment.",
        epilog="examples:\n"
        "  culm doctor\n"
        "  culm run examples/digits_mlp.toml --kill n1@20:2B1\n"
        "  culm up examples/digits_mlp.toml",
    )
    parser.add_argument("--version", action="version", version=f"culm {__version__}", help="print the version of Culm")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in modules or dict.fromkeys(MODULES.values()):
        import_module(f"culm.commands.{module}").add_arguments(commands)
    for each in all_parsers(parser):
        each.formatter_class = (
            argparse.RawDescriptionHelpFormatter
        )  # else argparse wraps the examples, and nobody could copy them
    return parser


def all_parsers(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    """The parser, those of its commands, and of theirs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from all_parsers(inner)


def main(argv: list[str] | None = None) -> int:
    """Runs one command. 0: done. 1: the run failed or differs. 2: bad usage or job file, with one line on stderr.

    130: interrupted. 141: the reader of stdout has gone, as head does; by convention the code of SIGPIPE.
    """
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        interrupts.end_at_once()
        if words[:1] == ["health"]:
            interrupts.end_after(HEALTH_SECONDS)
    command = words[0] if words and words[0] in MODULES else ""
    try:
        arguments = _parsed(words, command)
        if isinstance(arguments, int):
            return arguments
        if command not in NODES or not os.environ.get("PYTHONSAFEPATH"):  # so a script's nodes look where it looks
            sys.path.insert(0, "")  # the current folder is importable, as the job file says
        if hasattr(arguments, "cluster") and (arguments.cluster or arguments.coordinator is None):
            arguments.coordinator = _coordinator_of(arguments)
        code: int = arguments.command(arguments)
        sys.stdout.flush()  # raises BrokenPipeError here, and not at the end of the interpreter
    except (JobError, Unavailable, ValueError) as error:
        last_line(command, in_one_line(error))
        return 1 if isinstance(error, StorageAway) else 2  # a supervisor starts again what did not end with 2
    except ModuleNotFoundError as error:
        if error.name not in NOT_IN_ALL_IMAGES:
            raise  # of the user's code, or of a broken install: the traceback tells where
        last_line(command, f"{error.name} is not installed here: use another image (docs/images.md), or install it")
        return 2
    except KeyboardInterrupt:
        print(f"culm {command}: interrupted", file=sys.stderr)
        return interrupts.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _coordinator_of(arguments: argparse.Namespace) -> str:
    """Of the cluster that is named, or meant."""
    from culm.engines.named_cluster import coordinator_of
    from culm.pipeline import default_ports

    if not arguments.cluster and (getattr(arguments, "demo", False) or getattr(arguments, "log", "")):
        return default_ports.COORDINATOR  # a recorded run is looked at: nobody is asked
    return coordinator_of(arguments.cluster, partial(print, file=sys.stderr))


def _parsed(words: list[str], command: str) -> argparse.Namespace | int:
    """The arguments; or the exit code, where the parser has shown the help or refused the line."""
    parser = make_parser([MODULES[command]] if command else [])
    try:
        if words and not command and not words[0].startswith("-"):
            parser.error(f"{words[0]!r} is not a command; {closest(words[0], MODULES)}")
        arguments, left = parser.parse_known_args(words)
        if left:
            (_own(parser, command) or parser).error(f"unrecognized arguments: {' '.join(left)}")
    except SystemExit as ended:
        sys.stdout.flush()
        return int(ended.code or 0)
    return arguments


def _own(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser | None:
    """The command's own parser."""
    return next((each for each in all_parsers(parser) if each.prog == f"{parser.prog} {command}"), None)


def in_one_line(error: Exception) -> str:
    """The error's text, made fit for a terminal: it may quote the user's code, or another host."""
    return told(" ".join(str(error).split())) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())

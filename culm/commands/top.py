"""``culm top``: a run and its nodes, live in the terminal."""

import argparse
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from culm.pipeline.errors import JobError
from culm.terminal import flags, interrupts
from culm.terminal.client import connect

if TYPE_CHECKING:
    from rich.console import Console

    from culm.ui.source import Live

EVERY = 1.0  # seconds from one look to the next
PIPED_WIDTH = 200  # characters, where stdout is no terminal: enough for every column


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "top",
        help="the run and its nodes, live in the terminal",
        description="Shows how far the run is and what every node does, anew each second until q or Ctrl-C: stages, "
        "the share of its time in bubbles, bytes sent, money, and what happened in the last minutes. Nodes that need "
        "somebody come first. Bubbles and bytes a second are those of the last ten seconds.",
        epilog="examples:\n  culm top\n  culm top --coordinator 127.0.0.1:7070 --once",
    )
    flags.add_coordinator(parser)
    once = "print one picture with every node, and end; culm top does so by itself where stdout is no terminal"
    parser.add_argument("--once", action="store_true", help=once)
    parser.set_defaults(command=top)


def top(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from culm.ui.source import Live

    channel, _ = connect(arguments.coordinator)  # where nobody answers, it says why
    channel.close()
    source, console = Live(arguments.coordinator), Console()
    if arguments.once or not console.is_terminal or console.is_dumb_terminal:
        _print_once(source, console)
    else:
        with suppress(KeyboardInterrupt):
            _show(source, console)
    return 0


def _print_once(source: "Live", console: "Console") -> None:
    from rich.console import Console

    from culm.terminal.recently import Recently
    from culm.terminal.top_picture import picture

    look, recently = source.look(), Recently()
    if look.problem:
        raise JobError(look.problem.rstrip("."), source.name, "see the coordinator's log")
    recently.take(look.status, look.at)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console = Console(width=PIPED_WIDTH)
    console.print(picture(look, recently, console.width))


def _show(source: "Live", console: "Console") -> None:
    """Until somebody ends it. Whatever ends it, the terminal is left as it was."""
    from rich.live import Live as Shown

    from culm.terminal.keys import Keys
    from culm.terminal.recently import Recently
    from culm.terminal.top_picture import picture

    interrupts.interrupt()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    recently = Recently()
    with Keys() as keys, Shown(console=console, screen=True, auto_refresh=False) as shown:
        while True:
            look = source.look()
            recently.take(look.status, look.at)
            shown.update(picture(look, recently, console.width, console.height), refresh=True)
            if "q" in keys.wait(EVERY).lower():
                return

"""``culm simulate``: how Culm and other strategies would have trained on a trace of machines that come and go."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from culm.pipeline.errors import JobError
from culm.simulator.markets.account import Row
from culm.simulator.markets.compare import COLUMNS, SPENT_COLUMNS, as_json, cells, rows, spent_cells
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.random_market import hourly
from culm.simulator.markets.trace import Change, read_trace, write_trace
from culm.simulator.markets.workload import PUBLISHED, SPOT
from culm.terminal import flags

HOUR = 3600.0


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "simulate",
        help="how Culm and others would have trained on a trace of machines",
        description="Runs Culm's own decisions, and the published rules of others, on the same machines under a "
        "virtual clock. See docs/simulator.md.",
        epilog="examples:\n"
        "  culm simulate --trace p3.csv\n"
        "  culm simulate --hourly 0.10 --hours 24 --seed 7\n"
        "  culm simulate --hourly 0.10 --hours 24 --write-trace drawn.jsonl",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace", metavar="FILE", help="a trace: lines of time_ms,add|remove,node, of date, time, count, or of JSON"
    )
    source.add_argument(
        "--hourly",
        type=flags.number(0.0, 1.0),
        metavar="P",
        help="draw a trace: within an hour each machine goes with probability P",
    )
    parser.add_argument(
        "--hours",
        type=flags.number(above=True, most=1e6),
        metavar="H",
        help="hours of the trace; default: all of it, or 24 of a drawn one",
    )
    parser.add_argument(
        "--model", choices=PUBLISHED, default="bert", help="whose published step times to use; default: bert"
    )
    parser.add_argument(
        "--price",
        type=flags.number(),
        default=SPOT,
        metavar="$/H",
        help=f"of a machine without a price in the trace; default: {SPOT}",
    )
    parser.add_argument("--seed", type=flags.seed, default=0, help="the same seed draws the same trace; default: 0")
    parser.add_argument(
        "--write-trace", type=flags.new_file, metavar="FILE", help="also write the trace, as JSON lines"
    )
    parser.add_argument("--plot", type=flags.new_file, metavar="FILE", help="also draw the results, as SVG")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=simulate)


def simulate(arguments: argparse.Namespace) -> int:
    changes, seconds = _machines(arguments)
    if arguments.write_trace:
        _write(arguments.write_trace, write_trace(changes))
    title = f"{arguments.model}, {seconds / HOUR:.1f} h"
    coming = rows(changes, PUBLISHED[arguments.model], seconds, Cluster(per_hour=arguments.price))
    if arguments.json:
        found = list(coming)
        told = {"seed": arguments.seed, "model": arguments.model, "seconds": seconds}
        print(json.dumps({**told, "rows": as_json(found)}))
    else:
        found = _show(coming, title)
    if arguments.plot:
        from culm.simulator.markets.picture import draw

        _write(arguments.plot, draw({title: found}))
    return 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise JobError(
            f"the file cannot be written ({error.strerror})", path, "give the path of a file to write"
        ) from error


def _machines(arguments: argparse.Namespace) -> tuple[list[Change], float]:
    hours = arguments.hours
    if arguments.trace is not None:
        changes = read_trace(arguments.trace, arguments.seed)
        return changes, hours * HOUR if hours is not None else changes[-1].at
    hours = hours if hours is not None else 24.0
    machines = PUBLISHED[arguments.model].machines
    return hourly(arguments.seed, machines, arguments.hourly, -int(-hours // 1)), hours * HOUR


def _show(coming: Iterator[Row], title: str) -> list[Row]:
    """A table that grows while the strategies are simulated."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console()
    table = Table(*COLUMNS, box=None, pad_edge=False, title=title, title_justify="left")
    spent = Table(*SPENT_COLUMNS, box=None, pad_edge=False, title="of the wall time", title_justify="left")
    for each in (table, spent):
        for column in each.columns:
            column.no_wrap = True
        for column in each.columns[1:]:
            column.justify = "right"
    found = []
    with Live(table, console=console, auto_refresh=False) as live:
        for row in coming:
            found.append(row)
            table.add_row(*cells(row))
            spent.add_row(*spent_cells(row))
            live.refresh()
    if not console.is_terminal:
        console.print()  # Live leaves the line break out there
    machines = found[-1]
    console.print(
        f"Machines were preempted every {machines.interval_hours:.2f} h and lived {machines.lifetime_hours:.2f} h, of "
        f"those that Culm rented. Fatal: all nodes met again, or the run went back to a checkpoint.\n"
    )
    console.print(spent)
    return found

"""``culm events``: what happened, and why."""

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.money.codec import Reader, to_line
from culm.pipeline.money.kinds import KINDS, Committed, Measured, Used
from culm.pipeline.rpc.channel import details
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb
from culm.terminal import flags, interrupts
from culm.terminal.client import connect

OF_STEPS = (Committed.kind, Measured.kind)  # of which every step has one
SHOW_THEM = "--all prints them, and --kind commit prints them alone"
COST_SECONDS = 5.0  # for the coordinator's answer


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "events",
        help="what happened, and why",
        description="Lists the run's events, each with its reason: in colours on a terminal, else as plain text. "
        "docs/events.md explains every kind.",
        epilog="examples:\n  culm events --follow\n  culm events --kind lost,plan\n"
        "  culm events --incidents\n  culm events --json > run.jsonl",
    )
    flags.add_coordinator(parser)
    parser.add_argument("--follow", action="store_true", help="print new events as they happen, until Ctrl-C")
    parser.add_argument(
        "--kind",
        type=flags.several(flags.one_of(*KINDS)),
        metavar="KIND[,KIND]",
        help="print events of these kinds alone; default: of all but usage, and on a terminal but commit and measured",
    )
    every = "print every kind: commits on a terminal too, and usage, which says where each node's time went"
    parser.add_argument("--all", action="store_true", help=every)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line, of every kind")
    blocks = (
        "print what went wrong alone, a block each: what was lost, why, how long it took, what was redone, its cost"
    )
    parser.add_argument("--incidents", action="store_true", help=blocks)
    parser.set_defaults(command=events)


def events(arguments: argparse.Namespace) -> int:
    interrupts.interrupt()
    if arguments.incidents:
        return incidents(arguments)
    write = _print_json if arguments.json else _lines()
    hides, hidden = hides_steps(arguments, sys.stdout.isatty()), 0
    channel, stub = connect(arguments.coordinator)
    with channel:
        try:
            for event in stub.ListEvents(pb.ListEventsRequest(from_sequence=1, follow=arguments.follow)):
                if hides and event.kind in OF_STEPS:
                    if arguments.follow and not hidden:
                        print(f"commits are left out: {SHOW_THEM}", file=sys.stderr)
                    hidden += 1
                elif is_wanted(event.kind, arguments):
                    write(cleaned(event))
        except KeyboardInterrupt:
            return 0
        except grpc.RpcError as error:
            raise _broken_off(error, arguments.coordinator) from error
    if hidden and not arguments.follow:
        print(f"{hidden:,} events of single steps are left out: {SHOW_THEM}", file=sys.stderr)
    return 0


def incidents(arguments: argparse.Namespace) -> int:
    """What went wrong so far, in the dashboard's words."""
    from rich.console import Console

    from culm.terminal import incident_blocks
    from culm.ui.incidents import Incidents

    if arguments.follow or arguments.json or arguments.all or arguments.kind is not None:
        mend = "leave out --follow, --kind, --all and --json, or leave out --incidents"
        raise JobError("incidents are made of all events so far", "--incidents", mend)
    found, reader = Incidents(), Reader("the incidents")
    channel, stub = connect(arguments.coordinator)
    with channel:
        try:
            for event in stub.ListEvents(pb.ListEventsRequest(from_sequence=1)):
                reader.read(cleaned(event), found.take)
            cost = cleaned(stub.GetCost(pb.GetCostRequest(), timeout=COST_SECONDS))
        except KeyboardInterrupt:
            return 0
        except grpc.RpcError as error:
            raise _broken_off(error, arguments.coordinator) from error
    incident_blocks.write(Console(), found.found, cost, datetime.now().astimezone().tzinfo or UTC)
    return 0


def _broken_off(error: grpc.RpcError, coordinator: str) -> JobError:
    mend = "call this again if the run goes on; else the coordinator's log says why it ended"
    return JobError(f"the events broke off: {details(error)}", coordinator, mend)


def is_wanted(kind: str, arguments: argparse.Namespace) -> bool:
    """Scripts go by what ``--json`` prints, and figures are made from it: nothing is left out there unasked."""
    if arguments.kind is not None:
        return kind in arguments.kind
    return kind != Used.kind or arguments.all or arguments.json


def hides_steps(arguments: argparse.Namespace, on_terminal: bool) -> bool:
    """A run has thousands of steps, and a person at a terminal looks for what happened beside them."""
    return on_terminal and arguments.kind is None and not arguments.all and not arguments.json


def _print_json(event: pb.ListEventsResponse) -> None:
    print(to_line(event), flush=True)


def _lines() -> Callable[[pb.ListEventsResponse], None]:
    from rich.console import Console

    from culm.terminal.event_lines import EventLines

    return EventLines(Console()).write

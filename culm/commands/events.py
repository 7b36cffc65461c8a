"""``culm events``: what happened, and why."""

import argparse
import time

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.money.codec import to_line
from culm.pipeline.money.kinds import KINDS
from culm.pipeline.rpc.channel import details
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb
from culm.terminal import flags, interrupts
from culm.terminal.client import connect


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "events",
        help="what happened, and why",
        description="Lists the run's events, each with its reason. docs/events.md explains every kind.",
        epilog="examples:\n  culm events --follow\n  culm events --kind lost,plan",
    )
    flags.add_coordinator(parser)
    parser.add_argument("--follow", action="store_true", help="print new events as they happen, until Ctrl-C")
    parser.add_argument(
        "--kind",
        type=flags.several(flags.one_of(*KINDS)),
        metavar="KIND[,KIND]",
        help="print events of these kinds alone; default: of all",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(command=events)


def events(arguments: argparse.Namespace) -> int:
    interrupts.interrupt()
    channel, stub = connect(arguments.coordinator)
    with channel:
        try:
            for event in stub.ListEvents(pb.ListEventsRequest(from_sequence=1, follow=arguments.follow)):
                if arguments.kind is None or event.kind in arguments.kind:
                    print(_line(cleaned(event), arguments.json), flush=True)
        except KeyboardInterrupt:
            return 0
        except grpc.RpcError as error:
            mend = "see whether the run has ended, or the coordinator's log"
            raise JobError(f"the events broke off: {details(error)}", arguments.coordinator, mend) from error
    return 0


def _line(event: pb.ListEventsResponse, as_json: bool) -> str:
    if not as_json:
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        return f"{at}.{int(event.time % 1 * 1000):03d}  {event.kind:<10} {event.text}"
    return to_line(event)

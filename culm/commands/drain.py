"""``culm drain``: a node hands its work over and goes."""

import argparse
import sys
import time

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.money.kinds import ENDS, Left
from culm.pipeline.rpc.channel import details
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal import flags
from culm.terminal.client import connect

POLL_SECONDS = 0.1
EVENTS_SECONDS = 30.0  # for all events of a long run
ENDS_OF_NODES = {each.kind for each in ENDS}


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "drain",
        help="let a node hand over and go",
        description="Hands a node's work over at the next commit, redoing nothing, and waits until the node has gone.",
        epilog="example: culm drain n2 --coordinator 127.0.0.1:7070",
    )
    parser.add_argument("node", type=flags.name, metavar="NODE", help="the node to let go, such as n2")
    flags.add_coordinator(parser)
    parser.add_argument("--no-wait", action="store_true", help="return as soon as the coordinator has the order")
    what = "how long to wait for the node to go; default: 600"
    parser.add_argument("--timeout", type=flags.seconds, default=600.0, metavar="SECONDS", help=what)
    parser.set_defaults(command=drain)


def drain(arguments: argparse.Namespace) -> int:
    channel, stub = connect(arguments.coordinator)
    with channel:
        try:
            before = stub.GetStatus(pb.GetStatusRequest(), timeout=5.0)
            stub.Drain(pb.DrainRequest(node=arguments.node), timeout=5.0)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise JobError(details(error), arguments.node, "name one of those") from error
            mend = "see the coordinator's log"
            raise JobError(details(error), f"--coordinator {arguments.coordinator}", mend) from error
        incarnation = next((n.incarnation for n in before.nodes if n.id == arguments.node), None)
        if arguments.no_wait:
            print(f"{arguments.node} is draining")
            return 0
        print(f"{arguments.node} hands over at the next commit", file=sys.stderr)
        deadline = time.monotonic() + arguments.timeout
        while time.monotonic() < deadline:
            try:
                status = stub.GetStatus(pb.GetStatusRequest(), timeout=5.0)
                gone = all((n.id, n.incarnation) != (arguments.node, incarnation) for n in status.nodes)
                end = _end_of(arguments.node, stub) if gone else None
            except grpc.RpcError as error:
                mend = "see the coordinator's log"
                raise JobError(f"the coordinator has gone: {details(error)}", arguments.coordinator, mend) from error
            if end is not None and end.kind != Left.kind:
                print(f"culm drain: it has not handed over: {end.text}; see culm events", file=sys.stderr)
                return 1
            if gone:
                print(f"{arguments.node} has left")
                return 0
            time.sleep(POLL_SECONDS)
    print(
        f"culm drain: {arguments.node} is still there after {arguments.timeout:g} s; see culm events", file=sys.stderr
    )
    return 1


def _end_of(node: str, stub: CoordinatorStub) -> pb.ListEventsResponse | None:
    """The event with which the node went; None where the coordinator has none on record."""
    events = stub.ListEvents(pb.ListEventsRequest(from_sequence=1), timeout=EVENTS_SECONDS)
    ends = [event for event in events if event.kind in ENDS_OF_NODES and event.fields["node"] == node]
    return cleaned(ends[-1]) if ends else None

"""``culm pause`` and ``culm resume``: a run stops to begin steps, and goes on."""

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.rpc.channel import details
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal import flags
from culm.terminal.client import connect
from culm.terminal.save_now import who

POLL_SECONDS = 0.1
MOST_DOLLARS = 1e12


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    pausing = commands.add_parser(
        "pause",
        help="have a run begin no more steps, until culm resume",
        description="Pauses the run at its next commit. The nodes stay, keep what they hold and go on costing money; a "
        "job with a [checkpoint] saves that step. Waits until the run is paused.",
        epilog="example: culm pause --coordinator 127.0.0.1:7070",
    )
    pausing.set_defaults(command=pause)
    resuming = commands.add_parser(
        "resume",
        help="let a paused run go on",
        description="Lets a run go on that was paused, by culm pause or by its budget, from where it stands.",
        epilog="examples:\n  culm resume\n  culm resume --budget 50",
    )
    what = "dollars that the run may cost in all from now on, those that it has cost among them; 0: no limit"
    resuming.add_argument("--budget", type=flags.number(0.0, MOST_DOLLARS), metavar="DOLLARS", help=what)
    what = "when it is to pause, such as 2026-12-01T08:00+01:00; a time without a zone is of this machine's; 0: never"
    resuming.add_argument("--stop-at", type=moment, metavar="TIME", help=what)
    resuming.set_defaults(command=resume)
    for parser in (pausing, resuming):
        flags.add_coordinator(parser)
        parser.add_argument("--no-wait", action="store_true", help="return as soon as the coordinator has the order")
        what = "how long to wait for it; default: 600"
        parser.add_argument("--timeout", type=flags.seconds, default=600.0, metavar="SECONDS", help=what)


def moment(text: str) -> float:
    """Unix seconds; 0 for none."""
    if text == "0":
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise flags.Refused(text, "is no time", "write it as in 2026-12-01T08:00:00+01:00") from error


def pause(arguments: argparse.Namespace) -> int:
    channel, stub = connect(arguments.coordinator)
    with channel:
        before = _status(stub, arguments)
        if before.HasField("pause") and before.phase == "paused":
            print(f"it is paused already: {before.detail}")
            return 0
        _ask(lambda: stub.Pause(pb.PauseRequest(who=who()), timeout=5.0), arguments)
        runs = before.phase == "running"  # else it waits for nodes, and is paused at once
        if arguments.no_wait:
            print("the run pauses with the next commit" if runs else "the run is paused before its next step")
            return 0
        if runs:
            print(f"step {before.step + 1} of {before.steps} runs: its commit pauses the run", file=sys.stderr)
        return _wait(stub, arguments, lambda s: s.phase in ("paused", "waiting") and s.HasField("pause"), "paused")


def resume(arguments: argparse.Namespace) -> int:
    channel, stub = connect(arguments.coordinator)
    with channel:
        before = _status(stub, arguments)
        request = pb.ResumeRequest(who=who(), budget=arguments.budget, stop_at=arguments.stop_at)
        if not before.HasField("pause") and arguments.budget is None and arguments.stop_at is None:
            print(f"it is not paused: {before.phase}, {before.detail}")
            return 0
        _ask(lambda: stub.Resume(request, timeout=5.0), arguments)
        if arguments.no_wait:
            print("the run goes on")
            return 0
        return _wait(stub, arguments, lambda s: not s.HasField("pause"), "running")


def _ask(call: Callable[[], object], arguments: argparse.Namespace) -> None:
    """Asks again for a moment where the coordinator has just taken over. Raises JobError where it refuses."""
    deadline = time.monotonic() + min(30.0, arguments.timeout)
    while True:
        try:
            call()
            return
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                continue
            what, _, mend = details(error).partition("; ")
            raise JobError(what, f"--coordinator {arguments.coordinator}", mend or "see culm status") from error


def _status(stub: CoordinatorStub, arguments: argparse.Namespace) -> pb.GetStatusResponse:
    try:
        status: pb.GetStatusResponse = stub.GetStatus(pb.GetStatusRequest(), timeout=5.0)
        return status
    except grpc.RpcError as error:
        mend = "see the coordinator's log"
        raise JobError(f"the coordinator has gone: {details(error)}", arguments.coordinator, mend) from error


def _wait(
    stub: CoordinatorStub,
    arguments: argparse.Namespace,
    is_there: Callable[[pb.GetStatusResponse], bool],
    what: str,
) -> int:
    deadline = time.monotonic() + arguments.timeout
    while time.monotonic() < deadline:
        status = _status(stub, arguments)
        if is_there(status):
            print(f"step {status.step} of {status.steps}: {status.detail}")
            return 0
        if status.phase in ("done", "failed"):
            print(f"the run is {status.phase}: {status.detail}")
            return 1
        time.sleep(POLL_SECONDS)
    print(f"culm: the run is not {what} after {arguments.timeout:g} s; see culm status", file=sys.stderr)
    return 1

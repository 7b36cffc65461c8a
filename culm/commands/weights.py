"""``culm weights``: the trained weights, from the nodes of a run that is done."""

import argparse
import json
import socket
import sys
from pathlib import Path

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.rpc.channel import details
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal import flags
from culm.terminal.client import connect


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "weights",
        help="the trained weights of a run that is done",
        description="Fetches the trained weights from the nodes once every step is committed, and prints their sha256. "
        "If the nodes have gone, reads the checkpoint of the last step. Once --out has written them, the nodes may go.",
        epilog="example: culm weights --coordinator 127.0.0.1:7070 --out model.safetensors",
    )
    flags.add_coordinator(parser)
    parser.add_argument(
        "--out",
        type=flags.weights_file,
        metavar="FILE",
        help="write the weights as safetensors, as culm run --out does",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=weights)


def weights(arguments: argparse.Namespace) -> int:
    from culm.local.gathering import gather
    from culm.pipeline.checkpoints.digest import save_weights, weights_sha256
    from culm.terminal.outcome import RunFailed

    channel, stub = connect(arguments.coordinator)
    with channel:
        try:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=5.0)
        except grpc.RpcError as error:
            mend = "see the coordinator's log"
            raise JobError(f"the coordinator does not answer: {details(error)}", arguments.coordinator, mend) from error
        if status.phase != "done":
            where = f"step {status.step} of {status.steps}, {status.phase}"
            raise JobError(f"the run is not done ({where})", arguments.coordinator, "wait until culm status says done")
        try:
            layers = gather(stub, lambda: None)
        except RunFailed as error:
            print(f"culm weights: {error}", file=sys.stderr)
            return error.code
        digest = weights_sha256(layers)
        if arguments.out:
            try:
                save_weights(arguments.out, layers)
            except OSError as error:
                print(f"culm weights: --out {arguments.out}: the weights cannot be written ({error})", file=sys.stderr)
                return 1
            _say_fetched(stub, f"culm weights wrote {Path(arguments.out).name} on {socket.gethostname()}")
    print(json.dumps({"steps": status.steps, "weights_sha256": digest}) if arguments.json else digest)
    return 0


def _say_fetched(stub: CoordinatorStub, who: str) -> None:
    """Tells the coordinator that the nodes may go. A viewer's certificate may not: then they stay for their time."""
    try:
        stub.NoteFetched(pb.NoteFetchedRequest(who=who), timeout=5.0)
    except grpc.RpcError as error:
        print(f"culm weights: the nodes stay for keep_after_done seconds: {details(error)}", file=sys.stderr)

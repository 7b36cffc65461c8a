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
        description="Gathers the weights from the nodes that hold them, once every step is committed; where those have "
        "gone, from the checkpoint of the last step. With --out the run is over: the nodes need not keep them.",
        epilog="example: culm weights --coordinator 127.0.0.1:7070 --out model.safetensors",
    )
    flags.add_coordinator(parser)
    parser.add_argument(
        "--out", type=flags.new_file, metavar="FILE", help="write them as safetensors, as culm run --out does"
    )
    parser.add_argument("--json", action="store_true")
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
            mend = "look at the coordinator's log"
            raise JobError(f"the coordinator does not answer: {details(error)}", arguments.coordinator, mend) from error
        if status.phase != "done":
            where = f"step {status.step} of {status.steps}, {status.phase}"
            raise JobError(f"the run is not done ({where})", arguments.coordinator, "wait for it: culm status")
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
                print(f"culm weights: --out {arguments.out}: it cannot be written ({error})", file=sys.stderr)
                return 1
            _say_fetched(stub, f"culm weights wrote {Path(arguments.out).name} on {socket.gethostname()}")
    print(json.dumps({"steps": status.steps, "weights_sha256": digest}) if arguments.json else digest)
    return 0


def _say_fetched(stub: CoordinatorStub, who: str) -> None:
    """Nobody else needs the nodes' copies. One who may only look cannot say so: then the nodes stay for their time."""
    try:
        stub.NoteFetched(pb.NoteFetchedRequest(who=who), timeout=5.0)
    except grpc.RpcError as error:
        print(f"culm weights: the nodes keep the weights for their time: {details(error)}", file=sys.stderr)

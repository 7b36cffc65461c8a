"""``culm health``: whether a service answers and is ready, for health checks."""

import argparse
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from culm.pipeline import default_ports
from culm.pipeline.errors import JobError
from culm.pipeline.rpc.channel import details
from culm.terminal import flags
from culm.terminal.client import connect

SERVING = health_pb2.HealthCheckResponse.SERVING


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "health",
        help="whether a service is ready",
        description="Asks a coordinator or a node whether it is ready. The exit code is 0 if it is, else 1.",
        epilog="example: culm health 127.0.0.1:7070",
    )
    default = flags.default_coordinator()
    where = f"where it listens; default: CULM_COORDINATOR, else {default_ports.COORDINATOR}"
    parser.add_argument("address", nargs="?", type=flags.address, default=default, metavar="HOST:PORT", help=where)
    parser.add_argument(
        "--role",
        choices=("coordinator", "stage"),
        default="coordinator",
        help="what listens there; default: coordinator",
    )
    parser.set_defaults(command=health)


def health(arguments: argparse.Namespace) -> int:
    try:
        channel, _ = connect(arguments.address, role=arguments.role)
        with channel:
            check = health_pb2.HealthCheckRequest()
            stub = health_pb2_grpc.HealthStub(channel)
            status = stub.Check(check, timeout=2.0).status  # type: ignore[attr-defined]
    except (JobError, grpc.RpcError) as error:
        why = details(error) if isinstance(error, grpc.RpcError) else error
        print(f"culm health: {arguments.address} is not ready: {why}", file=sys.stderr)
        return 1
    print("ready" if status == SERVING else "not ready")
    return 0 if status == SERVING else 1

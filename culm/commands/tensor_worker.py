"""``culm tensor-worker``: computes for the graph servers of a run, and holds nothing."""

import argparse
import os
import socket

from culm.pipeline.rpc.tls import check_own
from culm.terminal import flags, logs


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    env = flags.from_environment
    worker = commands.add_parser(
        "tensor-worker",
        help="compute for the graph servers of a run",
        description="Computes what a graph's layers do with parameters, for all graph servers of a run whose job has "
        "a [graph]. It holds nothing: start any number at any time, and end them as you like. It ends with the run. "
        "Where AWS_LAMBDA_RUNTIME_API is set it takes invocations of AWS Lambda in place of asking a coordinator.",
        epilog="example: culm tensor-worker --coordinator 127.0.0.1:7070",
    )
    flags.add_own_coordinator(worker)
    worker.add_argument(
        "--name",
        type=flags.optional(flags.name),
        default=env("CULM_NAME"),
        help="its name in logs; default: CULM_NAME, else host name and process id",
    )
    worker.add_argument(
        "--memory",
        type=flags.whole(0, 2**60),
        default=env("CULM_MEMORY", "0"),
        metavar="BYTES",
        help="memory that it is billed by; default: CULM_MEMORY, else 0: it is not known",
    )
    worker.add_argument(
        "--connect-timeout",
        type=flags.seconds,
        default=env("CULM_CONNECT_TIMEOUT", "30"),
        metavar="SECONDS",
        help="how long the coordinator may be silent, the first time too; default: CULM_CONNECT_TIMEOUT, else 30",
    )
    worker.set_defaults(command=tensor_worker)


def tensor_worker(arguments: argparse.Namespace) -> int:
    name = arguments.name or f"{socket.gethostname()}-{os.getpid()}"
    logs.set_up({"service": "tensor-worker", "worker": name})
    check_own()
    from culm.tensor_worker.worker import WorkerSettings, main

    return main(
        WorkerSettings(
            coordinator=arguments.coordinator,
            name=name,
            memory_bytes=arguments.memory,
            runtime=os.environ.get("AWS_LAMBDA_RUNTIME_API", ""),
            connect_timeout=arguments.connect_timeout,
        )
    )

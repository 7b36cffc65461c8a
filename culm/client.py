"""Talking to a coordinator from the command line."""

import os

import grpc

from pipeline.errors import JobError
from pipeline.tls import VARIABLE, folder, open_channel
from protos.coordinator_pb2_grpc import CoordinatorStub

DEFAULT_COORDINATOR = "127.0.0.1:7070"
PATIENCE = 2.0  # seconds


def default_coordinator() -> str:
    return os.environ.get("CULM_COORDINATOR", DEFAULT_COORDINATOR)


def connect(
    coordinator: str, patience: float = PATIENCE, role: str = "coordinator"
) -> tuple[grpc.Channel, CoordinatorStub]:
    """A ready channel and its stub. Raises JobError when nobody answers."""
    channel = open_channel(coordinator, role)
    try:
        grpc.channel_ready_future(channel).result(timeout=patience)
    except grpc.FutureTimeoutError as error:
        channel.close()
        mend = "start one, or name where it listens"
        if folder() is not None:
            mend += f"; with certificates both ends need them, of one authority and still valid ({VARIABLE}={folder()})"
        raise JobError(f"no coordinator answers at {coordinator}", "--coordinator", mend) from error
    return channel, CoordinatorStub(channel)

"""Talking to a coordinator from the command line."""

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.rpc.tls import open_channel, why_silent
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

PATIENCE = 2.0  # seconds


def connect(
    coordinator: str, patience: float = PATIENCE, role: str = "coordinator"
) -> tuple[grpc.Channel, CoordinatorStub]:
    """A ready channel and its stub. Raises JobError when nobody answers."""
    channel = open_channel(coordinator, role)
    try:
        grpc.channel_ready_future(channel).result(timeout=patience)
    except grpc.FutureTimeoutError as error:
        channel.close()
        why = why_silent(coordinator, role)
        what, mend = (why.what, why.mend) if why else ("it has begun to answer just now", "try again")
        raise JobError(f"no {role} answers at {coordinator}: {what}", "--coordinator", mend) from error
    return channel, CoordinatorStub(channel)

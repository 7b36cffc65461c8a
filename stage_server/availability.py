"""What a node tells of itself once it has built the model, and repeats on every order stream."""

from culm.pipeline.job import Job
from culm.pipeline.messages import identity_into
from culm.pipeline.text import told
from culm.pipeline.user_code.model import ModelSource
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.compute.device import Device
from culm.stage_server.compute.footprint import footprint
from culm.stage_server.compute.layer_times import measured
from culm.stage_server.watching.memory import memory_bytes


def availability(job: Job, source: ModelSource, device: Device, welcome: pb.Welcome, memory: int = 0) -> pb.Available:
    """The model's layers, what the bits depend on, and how long the layers take if the coordinator wants to know.

    ``memory``: the bytes that the node may use, if whoever started it has said so.
    """
    available = pb.Available(layer_parameters=source.parameter_counts(), fingerprint=source.fingerprint())
    identity_into(source.identity(), available)
    available.memory_bytes = memory_bytes(device, memory)
    for state, gradient in footprint(source):
        available.layer_state_bytes.append(state)
        available.layer_gradient_bytes.append(gradient)
    if welcome.measure:
        seconds, passed, why = measured(job, source, device)
        available.layer_seconds.extend(seconds)
        available.layer_output_bytes.extend(passed)
        available.unmeasured = told(why)
    return available

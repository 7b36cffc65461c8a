"""What a node tells of itself once it has built the model, and repeats on every order stream."""

from collections.abc import Mapping
from types import MappingProxyType

from culm.pipeline.job import Job
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.messages import identity_into
from culm.pipeline.text import told
from culm.pipeline.user_code.model import ModelSource
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.compute.device import Device
from culm.stage_server.compute.footprint import footprint
from culm.stage_server.compute.layer_times import measured
from culm.stage_server.spiller import Allowance
from culm.stage_server.watching.memory import memory_bytes


def availability(
    job: Job,
    source: ModelSource,
    device: Device,
    welcome: pb.Welcome,
    memory: int = 0,
    spill_above: int = 0,
    samples: Mapping[str, str] = MappingProxyType({}),
) -> pb.Available:
    """The model's layers, what the bits depend on, and how long the layers take if the coordinator wants to know.

    ``memory``: the bytes that the node may use, and ``spill_above``: for tensors that it keeps until the commit, if
    whoever started it has said so. ``samples``: what the datasets give here, as parts of the run's identity.
    """
    available = pb.Available(layer_parameters=source.parameter_counts(), fingerprint=source.fingerprint())
    identity_into(source.identity(), available)
    available.parts.update(samples)
    available.memory_bytes, available.spill_above = memory_bytes(device, memory), spill_above
    for state, gradient in footprint(source):
        available.layer_state_bytes.append(state)
        available.layer_gradient_bytes.append(gradient)
    if welcome.measure:
        found, why = measured(job, source, device)
        available.layer_seconds.extend(layer.seconds for layer in found)
        available.unmeasured = told(why)
        available.layer_boundary_bytes.extend(layer.boundary for layer in found)
    return available


def allowance_for(available: pb.Available, device: Device, folder: str) -> Allowance:
    """For tensors that this node keeps until the commit: what was said, else what the layers leave of its memory."""
    layers = tuple(map(LayerBytes, available.layer_state_bytes, available.layer_gradient_bytes))
    memory = available.memory_bytes if device.in_host else 0  # an accelerator's holds no kept tensors
    return Allowance(above=available.spill_above, memory=memory, layers=layers, folder=folder)

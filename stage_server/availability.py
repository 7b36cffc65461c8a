"""What a node tells of itself once it has built the model, and repeats on every order stream."""

import torch

from culm.pipeline.job import Job
from culm.pipeline.messages import identity_into
from culm.pipeline.text import told
from culm.pipeline.user_code.model import ModelSource
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.compute.layer_times import measured


def availability(job: Job, source: ModelSource, device: torch.device, welcome: pb.Welcome) -> pb.Available:
    """The model's layers, what the bits depend on, and how long the layers take if the coordinator wants to know."""
    available = pb.Available(layer_parameters=source.parameter_counts(), fingerprint=source.fingerprint())
    identity_into(source.identity(), available)
    if welcome.measure:
        seconds, why = measured(job, source, device)
        available.layer_seconds.extend(seconds)
        available.unmeasured = told(why)
    return available

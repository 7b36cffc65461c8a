"""Trains a job on stages that stand beside each other in one process, cut anywhere."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch

from culm.pipeline.checkpoints.digest import weights_sha256
from culm.pipeline.job import Job, parse_job
from culm.pipeline.tensors.pytrees import mapped, tensors_in
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.keeping import Keeping
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.stage import Stage, merged

JOB = """
[job]
steps = 2
seed = 5
[model]
layers = "{module}:{layers}"
[data]
dataset = "{module}:{dataset}"
microbatch = {microbatch}
[train]
loss = "torch.nn.functional:cross_entropy"
optimizer = "torch.optim:SGD"
optimizer_args = {{ lr = 0.1, momentum = 0.9 }}
[pipeline]
stages = 1
microbatches = 3
"""
Pass = Callable[[torch.Tensor], torch.Tensor]  # of each tensor


def job_of_parts(module: str, layers: str, dataset: str, microbatch: int = 3) -> Job:
    """Two steps of a small job, whose layers and dataset are functions of the module."""
    return parse_job(JOB.format(module=module, layers=layers, dataset=dataset, microbatch=microbatch))


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """As between two stages of one node: the next one has the very tensor that the one before keeps."""
    return tensor


def train(job: Job, cuts: tuple[int, ...], splits: bool, passed: Pass = as_it_is, redundant: bool = False) -> str:
    """The weights' hash after all steps, the stages one after the other.

    ``passed``: what the next stage is given; ``redundant``: whether graphs are kept as those of redundant forwards.
    """
    source = ModelSource(job)
    held = [HeldLayer.build(source, i, CPU) for i in range(source.layer_count)]
    ranges = list(pairwise((0, *cuts, len(held))))
    stages = [Stage(job, 0, held[a:b], a == 0, b == len(held), source.loss, splits) for a, b in ranges]
    data = Microbatches(job, source.dataset())
    for step in range(job.job.steps):
        for stage in stages:
            stage.begin_step(step)
        for m in range(job.pipeline.microbatches):
            x, target = data.microbatch(step, 0, m)
            for s, stage in enumerate(stages):
                kept = [tensor.clone() for tensor in tensors_in(x)]
                with Keeping(CPU) if redundant else nullcontext():
                    y = stage.forward(m, x, target if s == len(stages) - 1 else None)
                whole = all(map(torch.equal, tensors_in(x), kept))
                assert whole, f"stage {s} wrote into what the stage before keeps"
                x = mapped(lambda tensor: passed(tensor.detach()).requires_grad_(tensor.requires_grad), y)
        given: list[tuple[torch.Tensor, torch.Tensor]] = []
        for m in range(job.pipeline.microbatches):
            gradients: dict[int, torch.Tensor] = {}
            for stage in reversed(stages):
                gradients = stage.backward(m, {place: passed(gradient) for place, gradient in gradients.items()})
                given += [(gradient, gradient.clone()) for gradient in gradients.values()]
                if splits:
                    stage.backward_of_parameters(m)
        kept_whole = all(torch.equal(gradient, kept) for gradient, kept in given)
        assert kept_whole, "a later backward wrote into a gradient that the stage had given away"
        reduced: dict[Addend, Any] = {}
        for stage in stages:
            reduced |= merged([stage], Block(0, 1), 1)
        for layer in held:
            layer.apply(reduced[Addend(layer.index)], 1.0, 0)
    return weights_sha256([(layer.index, layer.module.state_dict()) for layer in held])

"""A layer's state has the names of its state_dict, and all of it gets to a copy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from culm.pipeline.checkpoints.layer_file import read_layer, write_layer
from culm.pipeline.checkpoints.manifest import Manifest
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.wire import header_of
from culm.pipeline.tree import Block
from culm.pipeline.user_code.layer_shapes import LayerShapes, state_problem
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.misfit import misfit
from tests.hostile.job_files import make_job


class Counting(nn.Module):
    """Adds up its inputs in buffers, of which one does not persist. x: [B, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("kept", torch.zeros(8))
        self.register_buffer("passing", torch.zeros(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        with torch.no_grad():
            self.get_buffer("kept").add_(x.sum(0))
            self.get_buffer("passing").sub_(x.sum(0))
        return y


class OneBuffer(nn.Module):
    """Two modules with one buffer, which the state_dict has twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.other.running_mean = self.one.running_mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.other(self.one(x))
        return y


class Adapted(nn.Module):
    """Has a frozen weight that a hook leaves out of the state_dict, and an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.base.requires_grad_(False)
        self.register_state_dict_post_hook(self._leave_out)  # type: ignore[no-untyped-call]

    @staticmethod
    def _leave_out(module: nn.Module, entries: dict[str, Any], prefix: str, metadata: Any) -> None:
        del entries[f"{prefix}base.weight"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + self.adapter(x)
        return y


class Extra(nn.Linear):
    """Keeps something else."""

    def get_extra_state(self) -> torch.Tensor:
        return torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        pass


KINDS: dict[str, Callable[[], Any]] = {
    "counting": Counting,
    "wrapped": lambda: checkpoint_wrapper(Counting()),
    "within": lambda: nn.Sequential(checkpoint_wrapper(Counting()), nn.BatchNorm1d(8)),
    "one buffer": OneBuffer,
    "adapted": Adapted,
    "normalized": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))),
}


def held(kind: str, seed: int) -> HeldLayer:
    torch.manual_seed(seed)
    module = KINDS[kind]()
    return HeldLayer(0, module, torch.optim.AdamW([p for p in module.parameters() if p.requires_grad]), CPU)


def trained(kind: str) -> HeldLayer:
    """After a step."""
    layer = held(kind, 0)
    layer.begin_step(0)
    layer.changing.begin_forward()
    y = layer.module(torch.randn(4, 8))
    layer.changing.end_forward(y)
    y.square().sum().backward()
    ((_, gradient),) = layer.merge(Block(0, 1), 1)
    layer.apply(gradient, 1.0, 0)
    return layer


def own(layer: HeldLayer) -> dict[str, torch.Tensor]:
    return {**dict(layer.module.named_parameters()), **dict(layer.module.named_buffers())}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_all_of_it_and_the_weights_have_the_state_dicts_names(kind: str, tmp_path: Path) -> None:
    layer, copy, resumed = trained(kind), held(kind, 1), held(kind, 2)
    state = layer.export()
    assert not misfit(copy.module, state)
    assert not state_problem(header_of(state), LayerShapes.of(copy.module))
    copy.install(state)
    files = {0: write_layer(str(tmp_path), 0, state)}
    manifest = Manifest(job="job", step=1, fingerprint="code", loss=0.0, files=files)
    resumed.install(read_layer(str(tmp_path), manifest, 0))
    for other in (copy, resumed):
        assert own(other).keys() == own(layer).keys()
        assert all(torch.equal(tensor, own(layer)[name]) for name, tensor in own(other).items())
    kinds = {name.partition(".")[::2] for name, _ in state.tensors}
    assert {name for kind, name in kinds if kind in ("parameter", "buffer")} == set(layer.module.state_dict())


def extra() -> list[Any]:
    return [nn.Linear(8, 8), Extra(8, 8), nn.Linear(8, 4)]


def extra_constructors() -> list[Any]:
    return [nn.Linear(8, 8), lambda: Extra(8, 8), nn.Linear(8, 4)]


def job_of(layers: str) -> Job:
    return make_job(layers=f"{__name__}:{layers}")


@pytest.mark.parametrize("layers", ["extra", "extra_constructors"])
def test_state_that_no_copy_would_have_is_refused(layers: str) -> None:
    with pytest.raises(JobError, match=r"the state_dict of layer 1 \(Extra\) has _extra_state, no parameter or buffer"):
        ModelSource(job_of(layers)).outlines()

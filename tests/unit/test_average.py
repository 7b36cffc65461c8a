"""A moving average of the weights: torch's own, whatever copies, checkpoints and resumed runs lie between."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from culm.pipeline.checkpoints.layer_file import weights_of, write_layer
from culm.pipeline.checkpoints.manifest import Manifest, write_manifest
from culm.pipeline.clip import SKIPPED
from culm.pipeline.errors import JobError
from culm.pipeline.identity import changes
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.footprint import footprint
from culm.stage_server.compute.layer import HeldLayer
from tests.unit.exactness import ADAMW, make_job

DECAY = 0.9


class Tied(nn.Module):
    """One parameter under two names, and one that is wrapped, so that the state dict has it under a shorter name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(3, 3), nn.Linear(3, 3)
        self.out.weight = self.inner.weight
        self.wrapped = checkpoint_wrapper(nn.Linear(3, 3))


def held(average: float | None = DECAY) -> HeldLayer:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[2].bias.requires_grad_(False)
    trained = [p for p in module.parameters() if p.requires_grad]
    return HeldLayer(0, module, torch.optim.AdamW(trained, lr=0.1), CPU, average=average)


def step(layers: list[HeldLayer], number: int, scale: float = 1.0) -> None:
    draws = torch.Generator().manual_seed(number)
    named = [(n, p) for n, p in layers[0].module.named_parameters() if p.requires_grad]
    gradient = Value(tuple((f"grad.{n}", torch.randn(p.shape, generator=draws)) for n, p in named))
    for layer in layers:
        layer.apply(gradient, scale, number)


def averages(layer: HeldLayer) -> dict[str, torch.Tensor]:
    return {n.removeprefix("average."): t for n, t in layer.export().tensors if n.startswith("average.")}


def test_it_is_torchs_own_in_every_copy() -> None:
    """Copies are made after some steps, as a spare is seeded, and go on beside it."""
    first = held()
    oracle = AveragedModel(first.module, multi_avg_fn=get_ema_multi_avg_fn(DECAY))  # type: ignore[no-untyped-call]
    copies = [first]
    for number in range(6):
        step(copies, number)
        oracle.update_parameters(first.module)
        if number in (0, 3):
            copies.append(held())
            copies[-1].install(first.export())
    expected = {n.removeprefix("module."): p for n, p in oracle.named_parameters() if p.requires_grad}
    assert "2.bias" not in expected
    for copy in copies:
        found = averages(copy)
        assert found.keys() == expected.keys()
        assert all(torch.allclose(found[name], expected[name]) for name in expected)
        assert all(torch.equal(found[name], averages(first)[name]) for name in expected)


def test_a_step_that_is_skipped_changes_none() -> None:
    layer = held()
    step([layer], 0)
    before = averages(layer)
    step([layer], 1, SKIPPED)
    assert all(torch.equal(before[name], tensor) for name, tensor in averages(layer).items())


def test_what_is_lent_stays_as_it_was() -> None:
    layer = held()
    step([layer], 0)
    loan, before = layer.lend(), averages(layer)
    step([layer], 1)
    lent = {n.removeprefix("average."): t for n, t in loan.value.tensors if n.startswith("average.")}
    assert all(torch.equal(before[name], lent[name]) for name in before)


def test_a_run_that_had_none_begins_with_the_next_step_and_one_that_wants_none_drops_them() -> None:
    without = held(None)
    step([without], 0)
    layer = held()
    layer.install(without.export())
    assert not averages(layer)
    step([layer], 1)
    weights = dict(layer.module.named_parameters())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in averages(layer).items())
    without.install(layer.export())
    assert not averages(without)


def test_a_checkpoint_gives_them_in_place_of_the_weights(tmp_path: Path) -> None:
    url, layer = f"file://{tmp_path}", held()
    for number in range(3):
        step([layer], number)
    files = {0: write_layer(url, 0, layer.export())}
    manifest = Manifest(job="a", step=3, fingerprint="", loss=0.5, files=files)
    write_manifest(url, manifest)
    weights, averaged = weights_of(url), weights_of(url, average=True)
    assert weights.keys() == averaged.keys()
    assert all(torch.equal(averaged[f"0.{name}"], tensor) for name, tensor in averages(layer).items())
    kept = {"0.2.bias", "0.1.running_mean", "0.1.running_var", "0.1.num_batches_tracked"}
    assert {name for name in weights if torch.equal(weights[name], averaged[name])} == kept
    files = {0: write_layer(url, 0, held(None).export())}
    write_manifest(url, replace(manifest, files=files))
    with pytest.raises(JobError, match=r"no averages; train with train\.average"):
        weights_of(url, average=True)


def test_it_follows_bfloat16_weights(tmp_path: Path) -> None:
    """A step's change is far below what a bfloat16 average could show."""
    module = nn.Linear(3, 1, bias=False, dtype=torch.bfloat16)
    module.weight.data.fill_(1.0)
    layer = HeldLayer(0, module, torch.optim.SGD(module.parameters(), lr=1.0), CPU, average=0.999)
    oracle = torch.ones(1, 3)
    for number in range(500):
        change = torch.full((1, 3), -0.25 if number == 1 else 0.0, dtype=torch.bfloat16)
        layer.apply(Value((("grad.weight", change),)), 1.0, number)
        oracle = 0.999 * oracle + (1 - 0.999) * module.weight.detach().float()
    copy = HeldLayer(0, nn.Linear(3, 1, bias=False, dtype=torch.bfloat16), None, CPU, average=0.999)
    copy.install(layer.export())
    assert torch.equal(averages(copy)["weight"], oracle)
    assert oracle.dtype == averages(layer)["weight"].dtype == torch.float32
    assert 1.09 < oracle.min() < 1.11
    exported = weights_of(checkpoint(tmp_path, layer.export()), average=True)
    assert torch.equal(exported["0.weight"], oracle.bfloat16())


def checkpoint(folder: Path, state: Value) -> str:
    url = f"file://{folder}"
    write_manifest(url, Manifest(job="a", step=3, fingerprint="", loss=0.5, files={0: write_layer(url, 0, state)}))
    return url


def test_each_name_in_the_state_dict_has_it(tmp_path: Path) -> None:
    """Whichever of them load_state_dict takes last."""
    module = Tied()
    layer = HeldLayer(0, module, torch.optim.SGD(module.parameters(), lr=0.1), CPU, average=DECAY)
    copy = HeldLayer(0, Tied(), None, CPU, average=DECAY)
    for number in range(3):
        step([layer], number)
    copy.install(Value(tuple((n, t) for n, t in layer.export().tensors if not n.startswith("optimizer."))))
    assert averages(copy).keys() == averages(layer).keys() == module.state_dict().keys()
    averaged = weights_of(checkpoint(tmp_path, layer.export()), average=True)
    assert averaged.keys() == {f"0.{name}" for name in module.state_dict()}
    assert torch.equal(averaged["0.out.weight"], averaged["0.inner.weight"])
    weights = module.state_dict()
    assert not any(torch.equal(tensor, weights[name.removeprefix("0.")]) for name, tensor in averaged.items())


def test_an_average_of_no_parameter_is_refused(tmp_path: Path) -> None:
    url = checkpoint(tmp_path, Value((("parameter.weight", torch.ones(2)), ("average.module.weight", torch.ones(2)))))
    with pytest.raises(JobError, match=r"0\.module\.weight has an average, and is no parameter"):
        weights_of(url, average=True)


def test_the_memory_that_it_takes_is_counted() -> None:
    def of(**train: Any) -> list[tuple[int, int]]:
        job = make_job(1, 1, ADAMW, True, count=1)
        return footprint(ModelSource(job.model_copy(update={"train": job.train.model_copy(update=train)})))

    for (state, gradient), (more, _) in zip(of(), of(average=DECAY), strict=True):
        assert more == state + gradient
    bf16 = {"precision": "bf16"}
    for (state, gradient), (more, _) in zip(of(**bf16), of(**bf16, average=DECAY), strict=True):
        assert more == state + 2 * gradient


def test_a_run_may_be_resumed_with_and_without_them() -> None:
    """The weights are the same."""
    job = make_job(1, 1, ADAMW, True, count=1)
    with_averages = job.model_copy(update={"train": job.train.model_copy(update={"average": DECAY})})
    assert not changes(job, with_averages)

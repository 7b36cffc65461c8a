"""Checkpoints: bit for bit there and back, refused when a bit is off, and readable by plain PyTorch."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from culm.__main__ import main
from pipeline.checkpoint import export, read_layer, write_layer
from pipeline.errors import JobError
from pipeline.manifest import (
    MANIFEST,
    CheckpointCorrupt,
    Manifest,
    find_checkpoints,
    folder_of,
    newest_whole,
    open_fs,
    problems,
    read_manifest,
    retain,
    write_manifest,
)
from pipeline.values import Value
from stage_server.layer import HeldLayer

LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    nn.ReLU,
    partial(nn.Linear, 4, 2, dtype=torch.bfloat16),
]


def trained(optimizer: Callable[..., torch.optim.Optimizer]) -> list[HeldLayer]:
    """Layers after two steps with made-up gradients."""
    torch.manual_seed(1)
    held = []
    for index, make in enumerate(LAYERS):
        module = make()
        parameters = list(module.parameters())
        layer = HeldLayer(index, module, optimizer(parameters) if parameters else None)
        for _ in range(2):
            layer.apply(Value(tuple((f"grad.{n}", torch.randn_like(p)) for n, p in module.named_parameters())), 1.0)
        held.append(layer)
    return held


def write(url: str, step: int, held: list[HeldLayer]) -> Manifest:
    folder = folder_of(url, step)
    files = {layer.index: write_layer(folder, layer.index, layer.export()) for layer in held}
    manifest = Manifest("job", step, "code", 0.1 * step, files)
    write_manifest(folder, manifest)
    return manifest


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/checkpoints" if request.param == "file" else f"memory://{tmp_path.name}"


@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.AdamW, lr=0.1), partial(torch.optim.SGD, lr=0.1, momentum=0.9)]
)
def test_a_layer_comes_back_bit_for_bit(url: str, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    held = trained(optimizer)
    manifest = write(url, 50, held)
    assert read_manifest(folder_of(url, 50)) == manifest
    for layer in held:
        expected, got = layer.export(), read_layer(folder_of(url, 50), manifest, layer.index)
        assert [name for name, _ in got.tensors] == [name for name, _ in expected.tensors]
        for (_, a), (_, b) in zip(got.tensors, expected.tensors, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert torch.equal(a, b)


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGES: dict[str, Callable[[Any, str], None]] = {
    "sha256": lambda fs, path: fs.pipe_file(path, flip(fs.cat_file(path))),
    "bytes, not": lambda fs, path: fs.pipe_file(path, fs.cat_file(path)[:-3]),
    "missing": lambda fs, path: fs.rm_file(path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(url: str, damage: str) -> None:
    held = trained(partial(torch.optim.AdamW, lr=0.1))
    write(url, 50, held)
    manifest = write(url, 100, held)
    fs, path = open_fs(folder_of(url, 100))
    DAMAGES[damage](fs, f"{path}/{manifest.files[2][1].name}")
    (problem,) = problems(folder_of(url, 100), manifest)
    assert damage in problem
    assert "layer-00002.optimizer.safetensors" in problem
    told: list[str] = []
    found = newest_whole(url, told.append)
    assert found is not None
    assert found.step == 50
    assert "step 100 is passed over" in told[0]
    with pytest.raises(CheckpointCorrupt, match=damage):
        read_layer(folder_of(url, 100), manifest, 2)


def test_without_a_whole_manifest_there_is_no_checkpoint(url: str) -> None:
    held = trained(partial(torch.optim.SGD, lr=0.1))
    write(url, 50, held)
    write(url, 100, held)
    fs, path = open_fs(folder_of(url, 100))
    fs.pipe_file(f"{path}/{MANIFEST}", fs.cat_file(f"{path}/{MANIFEST}")[:40])
    write_layer(folder_of(url, 150), 0, held[0].export())
    assert [(f.step, f.manifest is not None) for f in find_checkpoints(url)] == [(150, False), (100, False), (50, True)]
    found = newest_whole(url)
    assert found is not None
    assert found.step == 50


def test_retention_keeps_the_newest_and_what_is_still_being_written(url: str) -> None:
    held = trained(partial(torch.optim.SGD, lr=0.1))
    for step in (10, 20, 30, 40):
        write(url, step, held)
    write_layer(folder_of(url, 15), 0, held[0].export())
    write_layer(folder_of(url, 50), 0, held[0].export())
    assert sorted(retain(url, 2)) == [10, 15, 20]
    assert [f.step for f in find_checkpoints(url)] == [50, 40, 30]


def test_nothing_is_there_before_the_first_one(url: str) -> None:
    assert find_checkpoints(url) == []
    assert newest_whole(url) is None
    assert retain(url, 1) == []


def test_a_url_that_nobody_knows_is_said_in_one_line() -> None:
    with pytest.raises(JobError, match="use file://"):
        find_checkpoints("nonsense://x")


def test_plain_pytorch_loads_an_export(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    held = trained(partial(torch.optim.AdamW, lr=0.1))
    write(url, 50, held)
    export(folder_of(url, 50), tmp_path / "model.safetensors")
    model = nn.Sequential(*(make() for make in LAYERS))
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    for module, layer in zip(model, held, strict=True):
        for name, tensor in layer.module.state_dict().items():
            assert torch.equal(module.state_dict()[name], tensor)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "c")
    held = trained(partial(torch.optim.SGD, lr=0.1))
    write(url, 50, held)
    manifest = write(url, 100, held)
    assert main(["checkpoint", "ls", url, "--json"]) == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == [100, 50]
    assert main(["checkpoint", "ls", url]) == 0
    assert "complete" in capsys.readouterr().out
    assert main(["checkpoint", "verify", url]) == 0
    assert main(["checkpoint", "export", url, "--out", str(tmp_path / "m.safetensors"), "--step", "50"]) == 0
    victim = Path(folder_of(url, 100)) / manifest.files[0][0].name
    victim.write_bytes(flip(victim.read_bytes()))
    capsys.readouterr()
    assert main(["checkpoint", "verify", url]) == 1
    assert victim.name in capsys.readouterr().out
    assert main(["checkpoint", "export", url, "--out", str(tmp_path / "n.safetensors")]) == 1
    assert "export the one before" in capsys.readouterr().err
    assert main(["checkpoint", "verify", url, "--step", "70"]) == 2
    assert "steps that are there: 100, 50" in capsys.readouterr().err

"""Checkpoints: bit for bit there and back, refused when a bit is off, and readable by plain PyTorch."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from culm.__main__ import main
from culm.pipeline.checkpoints.layer_file import BLOCK_BYTES, export, read_layer, write_layer
from culm.pipeline.checkpoints.manifest import (
    MANIFEST,
    CheckpointCorrupt,
    Manifest,
    find_checkpoints,
    folder_of,
    manifest_before,
    problems,
    read_manifest,
    retain,
    write_manifest,
)
from culm.pipeline.checkpoints.storage import open_fs, put
from culm.pipeline.errors import JobError
from culm.pipeline.tensors.values import Value
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer

LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    nn.ReLU,
    partial(nn.Linear, 4, 2, dtype=torch.bfloat16),
    lambda: nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
]


def trained(optimizer: Callable[..., torch.optim.Optimizer]) -> list[HeldLayer]:
    """Layers after two steps with made-up gradients."""
    torch.manual_seed(1)
    held = []
    for index, make in enumerate(LAYERS):
        module = make()
        parameters = list(module.parameters())
        layer = HeldLayer(index, module, optimizer(parameters) if parameters else None, CPU)
        for _ in range(2):
            layer.apply(Value(tuple((f"grad.{n}", torch.randn_like(p)) for n, p in module.named_parameters())), 1.0, 0)
        held.append(layer)
    return held


def write(url: str, step: int, held: list[HeldLayer]) -> Manifest:
    folder = folder_of(url, step)
    files = {layer.index: write_layer(folder, layer.index, layer.export()) for layer in held}
    manifest = Manifest(job="job", step=step, fingerprint="code", loss=0.1 * step, files=files)
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


def back(url: str, state: Value) -> list[tuple[str, torch.Tensor]]:
    """One layer's state, written and read again."""
    folder = folder_of(url, 1)
    files = write_layer(folder, 0, state)
    return list(
        read_layer(folder, Manifest(job="job", step=1, fingerprint="code", loss=0.0, files={0: files}), 0).tensors
    )


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
)
def test_every_dtype_and_shape_comes_back(url: str, dtype: torch.dtype) -> None:
    tensors = {shape: torch.ones(shape).to(dtype) for shape in [(), (0,), (0, 3), (1,), (2, 3)]}
    state = Value(tuple((f"optimizer.0.{shape}", tensor) for shape, tensor in tensors.items()))
    for (_, got), (shape, tensor) in zip(back(url, state), tensors.items(), strict=True):
        assert (got.dtype, tuple(got.shape)) == (dtype, shape)
        assert torch.equal(got, tensor)


def test_tensors_with_the_same_memory_or_with_gaps_come_back(url: str) -> None:
    t = torch.randn(4, 6)
    views = [t, t, t.T, t[:, ::2], t[0].expand(3, 6), t.view(torch.int32)]
    state = Value(tuple((f"parameter.{i}", view) for i, view in enumerate(views)))
    for (_, got), view in zip(back(url, state), views, strict=True):
        assert torch.equal(got, view)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float8_e8m0fnu])
def test_a_dtype_that_cannot_be_read_again_is_never_written(url: str, dtype: torch.dtype) -> None:
    with pytest.raises(JobError, match=r"layer 3: parameter\.weight has dtype torch\."):
        write_layer(folder_of(url, 1), 3, Value((("parameter.weight", torch.empty(2, dtype=dtype)),)))
    assert find_checkpoints(url) == []


def test_two_writers_of_a_layer_and_leftovers_do_no_harm(url: str) -> None:
    held = trained(partial(torch.optim.AdamW, lr=0.1))
    put(folder_of(url, 50), "layer-00000.safetensors", [b"half a fi"])
    manifest = write(url, 50, held)
    assert write_layer(folder_of(url, 50), 0, held[0].export()) == manifest.files[0]
    assert problems(folder_of(url, 50), manifest) == []


def test_a_tensor_of_several_blocks_is_written_and_hashed_whole(url: str) -> None:
    elements = torch.arange(2 * BLOCK_BYTES // 4 + 3, dtype=torch.float32)  # the last block is a small one
    folder = folder_of(url, 50)
    named = write_layer(folder, 0, Value((("parameter.weight", elements),)))
    manifest = Manifest(job="job", step=50, fingerprint="code", loss=0.0, files={0: named})
    assert problems(folder, manifest) == []
    assert torch.equal(read_layer(folder, manifest, 0).tensors[0][1], elements)


# Its file system dies in the middle of the first write, as kill -9 would have it.
KILLED_WRITER = """
import os, signal, sys
from fsspec.implementations.local import LocalFileOpener
from culm.pipeline.checkpoints.storage import put

def torn(self, data):
    self.f.write(data[: len(data) // 2])
    self.f.flush()
    os.kill(os.getpid(), signal.SIGKILL)

LocalFileOpener.write = torn
put(sys.argv[1], sys.argv[2], [b"x" * 1000])
"""


def test_a_writer_that_is_killed_tears_no_file_of_a_complete_checkpoint(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    manifest = write(url, 50, trained(partial(torch.optim.SGD, lr=0.1)))
    words = [sys.executable, "-c", KILLED_WRITER, folder_of(url, 50), manifest.files[0][0].name]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(words, env=environment, timeout=60).returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob("*.part"))) == 1, "the writer got as far as to leave something behind"
    assert problems(folder_of(url, 50), manifest) == []


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGES: dict[str, Callable[[Any, str], None]] = {
    "sha256": lambda fs, path: fs.pipe_file(path, flip(fs.cat_file(path))),
    "bytes, not": lambda fs, path: fs.pipe_file(path, fs.cat_file(path)[:-3]),
    "missing": lambda fs, path: fs.rm_file(path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(url: str, damage: str) -> None:
    held = trained(partial(torch.optim.AdamW, lr=0.1))
    write(url, 50, held)
    manifest = write(url, 100, held)
    fs, path = open_fs(folder_of(url, 100))
    DAMAGES[damage](fs, f"{path}/{manifest.files[2][1].name}")
    (problem,) = problems(folder_of(url, 100), manifest)
    assert damage in problem
    assert "layer-00002.optimizer.safetensors" in problem
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


TEXT = '{"format": 1, "job": "j", "step": 60, "fingerprint": "", "loss": "0x0p0", "layer_count": 0, "layers": {}}'
MANGLED: dict[str, str | bytes] = {
    "nothing": "",
    "a list": "[]",
    "null": "null",
    "no utf-8": b"\xff\xfe{",
    "another format": TEXT.replace('"format": 1', '"format": 2'),
    "a key missing": TEXT.replace('"loss"', '"lass"'),
    "a number for a text": TEXT.replace('"0x0p0"', "0.5"),
    "layers that are no map": TEXT.replace("{}", "3"),
    "a file without a hash": TEXT.replace("{}", '{"0": [["a", 3], ["b", 3]]}'),
    "one file of two": TEXT.replace("{}", '{"0": [["a", 3, "f"]]}').replace('count": 0', 'count": 1'),
    "a layer missing": TEXT.replace('count": 0', 'count": 1'),
    "another step": TEXT.replace("60", "70"),
}


@pytest.mark.parametrize("mangled", MANGLED)
def test_a_manifest_that_says_anything_else_is_listed_with_a_reason(url: str, mangled: str) -> None:
    write(url, 50, trained(partial(torch.optim.SGD, lr=0.1)))
    put(folder_of(url, 60), MANIFEST, [TEXT.encode()])
    assert find_checkpoints(url)[0].manifest is not None
    text = MANGLED[mangled]
    put(folder_of(url, 60), MANIFEST, [text if isinstance(text, bytes) else text.encode()])
    found = find_checkpoints(url)
    assert [(f.step, f.manifest is not None) for f in found] == [(60, False), (50, True)]
    assert f"{folder_of(url, 60)}/{MANIFEST}" in found[0].problem


def test_what_only_looks_like_a_checkpoint_is_left_alone(url: str) -> None:
    for name in ("my-step-00000010", "step-7", "step-000000010", "notes"):
        put(f"{url}/{name}", "a", [b"1"])
    put(url, "step-00000020", [b"a file, not a folder"])
    write(url, 50, trained(partial(torch.optim.SGD, lr=0.1)))
    assert [(f.step, f.manifest is not None) for f in find_checkpoints(url)] == [(50, True), (20, False)]
    assert retain(url, 50, {50}) == [20]
    fs, path = open_fs(url)
    left = {name.rstrip("/").rpartition("/")[2] for name in fs.ls(path, detail=False)}
    assert left == {"my-step-00000010", "step-7", "step-000000010", "notes", "step-00000050"}


def test_another_run_that_writes_there_takes_the_manifest_away_first(url: str) -> None:
    held = trained(partial(torch.optim.SGD, lr=0.1))
    before = write(url, 50, held)
    folder = folder_of(url, 50)
    for layer in held:
        write_layer(folder, layer.index, layer.export(), manifest_before(folder))
    assert manifest_before(folder) == before, "the same bytes once more tear nothing"
    write_layer(folder, 1, held[0].export(), manifest_before(folder))
    assert manifest_before(folder) is None


def test_retention_never_takes_the_newest(url: str) -> None:
    write(url, 50, trained(partial(torch.optim.SGD, lr=0.1)))
    assert retain(url, 50, ()) == []
    assert [f.step for f in find_checkpoints(url)] == [50]


def test_retention_keeps_the_newest_and_what_is_still_being_written(url: str) -> None:
    held = trained(partial(torch.optim.SGD, lr=0.1))
    for step in (10, 20, 30, 40):
        write(url, step, held)
    write_layer(folder_of(url, 15), 0, held[0].export())
    write_layer(folder_of(url, 50), 0, held[0].export())
    assert sorted(retain(url, 40, {30, 40})) == [10, 15, 20]
    assert [f.step for f in find_checkpoints(url)] == [50, 40, 30]


def test_retention_leaves_another_jobs_checkpoints(url: str) -> None:
    """Two runs wrote to one URL: the one that was further deleted all that the other could have gone back to."""
    held = trained(partial(torch.optim.SGD, lr=0.1))
    for step in (10, 20, 40):
        write(url, step, held)
    write_manifest(folder_of(url, 20), replace(read_manifest(folder_of(url, 20)), job="another"))
    assert retain(url, 40, {40}, lambda manifest: manifest.job != "another") == [10]
    assert [f.step for f in find_checkpoints(url)] == [40, 20]


def test_nothing_is_there_before_the_first_one(url: str) -> None:
    assert find_checkpoints(url) == []
    assert retain(url, 10, {10}) == []


def test_a_url_that_nobody_knows_is_said_in_one_line() -> None:
    with pytest.raises(JobError, match="use file://"):
        find_checkpoints("nonsense://x")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_missing_extra_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("s3fs", "gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JobError, match=rf"pip install 'culm\[{scheme}\]'"):
        find_checkpoints(f"{scheme}://bucket/path")


class Unreachable(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Fails as an object store's client does without credentials: with an error of its own, on two lines."""

    protocol = "unreachable"

    def _fail(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("Unable to locate\ncredentials")

    ls = makedirs = cat_file = _fail


def test_a_storage_that_does_not_answer_is_not_taken_for_an_empty_one(capsys: pytest.CaptureFixture[str]) -> None:
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    url = "unreachable://bucket"
    for attempt in (
        lambda: find_checkpoints(url),
        lambda: retain(url, 1, ()),
        lambda: read_manifest(folder_of(url, 1)),
        lambda: write_layer(folder_of(url, 1), 0, Value(())),
    ):
        with pytest.raises(OSError, match="cannot be reached: RuntimeError"):
            attempt()
    assert main(["checkpoint", "ls", url]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("culm checkpoint: unreachable://bucket: the storage cannot be read")
    assert "credentials" in line


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


def test_the_list_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "c")
    assert main(["checkpoint", "ls", url]) == 0
    assert capsys.readouterr().out == f"no checkpoints at {url}\n"
    held = trained(partial(torch.optim.SGD, lr=0.1))
    folder = folder_of(url, 50)
    files = {layer.index: write_layer(folder, layer.index, layer.export()) for layer in held}
    write_manifest(folder, Manifest(job="digits", step=50, fingerprint="code", loss=math.nan, files=files))
    write_layer(folder_of(url, 100), 0, held[0].export())
    assert main(["checkpoint", "ls", url, "--json"]) == 0
    begun, whole = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (begun["step"], begun["whole"], begun["bytes"], begun["completed"]) == (100, False, None, None)
    assert "never completed" in begun["problem"]
    assert (whole["step"], whole["whole"], whole["problem"], whole["job"]) == (50, True, "", "digits")
    assert whole["bytes"] == sum(path.stat().st_size for path in Path(folder).glob("layer-*"))
    assert (whole["layers"], whole["loss"]) == (len(LAYERS), None)
    assert whole["completed"].endswith("+00:00")
    assert main(["checkpoint", "ls", url]) == 0
    out = capsys.readouterr().out
    assert "incomplete:" in out
    assert "nan" in out


def test_an_export_that_cannot_be_written_or_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "c")
    write(url, 50, trained(partial(torch.optim.SGD, lr=0.1)))
    write_layer(folder_of(url, 100), 0, Value(()))
    (tmp_path / "taken").mkdir()
    assert main(["checkpoint", "export", url, "--out", str(tmp_path / "taken")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a file" in line
    assert main(["checkpoint", "export", url, "--out", str(tmp_path / "nowhere" / "m.safetensors")]) == 2
    assert "make the folder first" in capsys.readouterr().err
    assert main(["checkpoint", "export", url, "--out", str(tmp_path / "m"), "--step", "100"]) == 1
    assert "never completed" in capsys.readouterr().err
    assert main(["checkpoint", "verify", url, "--step", "100", "--json"]) == 1
    assert "never completed" in json.loads(capsys.readouterr().out)["problems"][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "taken"]

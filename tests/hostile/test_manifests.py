"""Manifests and files of anybody's making: a folder that is not what it should be is passed over, with its reason."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from culm.__main__ import main
from culm.pipeline.checkpoints import evaluation_file
from culm.pipeline.checkpoints.layer_file import read_layer, write_layer
from culm.pipeline.checkpoints.manifest import (
    MANIFEST,
    CheckpointCorrupt,
    File,
    Found,
    Manifest,
    find_checkpoints,
    folder_of,
    manifest_to_json,
    problems,
    write_manifest,
)
from culm.pipeline.tensors.values import Value

Content = dict[str, Any]


def newest_whole(url: str) -> Found | None:
    """Whose every file has its hash."""
    whole = (f for f in find_checkpoints(url) if f.manifest is not None and not problems(f.url, f.manifest))
    return next(whole, None)


def whole(url: str, step: int) -> Manifest:
    folder = folder_of(url, step)
    files = {i: write_layer(folder, i, Value((("parameter.weight", torch.ones(2)),))) for i in range(2)}
    manifest = Manifest(job="job", step=step, fingerprint="code", loss=1.0, files=files)
    write_manifest(folder, manifest)
    return manifest


def renamed(name: str) -> Callable[[Content], object]:
    def change(content: Content) -> None:
        content["layers"]["1"][0][0] = name

    return change


def nested(depth: int) -> bytes:
    return b'{"format": 1, "layers": ' + b"[" * depth + b"]" * depth + b"}"


HOSTILE: dict[str, Callable[[Content], object]] = {
    "a path": renamed("../../etc/passwd"),
    "an absolute path": renamed("/etc/passwd"),
    "a folder above": renamed(".."),
    "a name of two lines": renamed("layer\nevil"),
    "a name with a NUL": renamed("layer\0"),
    "a name of 10,000 characters": renamed("x" * 10_000),
    "no name": renamed(""),
    "another layer's file": renamed("layer-00000.safetensors"),
    "a huge count of layers": lambda c: c.update(layer_count=10**15),
    "a negative count of layers": lambda c: c.update(layer_count=-1),
    "a huge step": lambda c: c.update(step=2**70),
    "a negative step": lambda c: c.update(step=-1),
    "a step that is true": lambda c: c.update(step=True),
    "a step that is a text": lambda c: c.update(step="60"),
    "a huge size": lambda c: c["layers"]["0"][0].__setitem__(1, 2**70),
    "a negative size": lambda c: c["layers"]["0"][0].__setitem__(1, -1),
    "a size that is a fraction": lambda c: c["layers"]["0"][0].__setitem__(1, 1.5),
    "a hash that is none": lambda c: c["layers"]["0"][0].__setitem__(2, "Z" * 64),
    "a negative layer": lambda c: c["layers"].update({"-1": c["layers"]["0"]}),
    "a job that is a list": lambda c: c.update(job=[["x"] * 100]),
    "a job of two lines": lambda c: c.update(job="\x1b[2Jjob\n"),
    "a job of a million characters": lambda c: c.update(job="x" * 1_000_000),
    "a loss that is a list": lambda c: c.update(loss=[]),
    "a loss that is too large": lambda c: c.update(loss="0x1p99999"),
    "files that are a text": lambda c: c["layers"].update({"0": "ab"}),
    "layers that are a list": lambda c: c.update(layers=[1, 2]),
    "a layer that is too many": lambda c: c["layers"].update({"7": c["layers"]["0"]}),
}
RAW: dict[str, bytes] = {
    "a hundred thousand brackets": nested(100_000),
    "a number of a million digits": b'{"format": 1, "step": ' + b"9" * 1_000_000 + b"}",
    "zeros": b"\0" * 10_000,
    "a lone surrogate": b'{"format": 1, "job": "\\ud800"}',
}


def replace_manifest(url: str, name: str) -> None:
    path = Path(folder_of(url, 60)) / MANIFEST
    if name in RAW:
        path.write_bytes(RAW[name])
        return
    content = json.loads(path.read_bytes())
    HOSTILE[name](content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", [*HOSTILE, *RAW])
def test_a_hostile_manifest_is_passed_over_everywhere(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "c")
    whole(url, 50)
    whole(url, 60)
    replace_manifest(url, name)
    found = find_checkpoints(url)
    assert [(f.step, f.manifest is not None) for f in found] == [(60, False), (50, True)]
    assert MANIFEST in found[0].problem
    assert found[0].problem.isprintable()
    assert len(found[0].problem) < 1000
    newest = newest_whole(url)
    assert newest is not None
    assert newest.step == 50
    assert main(["checkpoint", "ls", url]) == 0
    assert "incomplete" in capsys.readouterr().out
    assert main(["checkpoint", "ls", url, "--json"]) == 0
    assert [row["whole"] for row in json.loads(capsys.readouterr().out)] == [False, True]
    assert main(["checkpoint", "verify", url, "--step", "60"]) == 1
    assert main(["checkpoint", "export", url, "--step", "60", "--out", str(tmp_path / "o")]) == 1
    assert main(["checkpoint", "export", url, "--out", str(tmp_path / "o")]) == 0


def header(content: object) -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
FILES: dict[str, bytes] = {
    "nothing": b"",
    "no header": b"\1",
    "a header of 2^63 bytes": struct.pack("<Q", 1 << 63) + b"{}",
    "a header longer than the file": struct.pack("<Q", 1000) + b"{}",
    "a header that is no JSON": struct.pack("<Q", 4) + b"\xff\xff\xff\xff",
    "a deep header": struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000,
    "no order": header({"weight": TENSOR}) + b"\0" * 8,
    "an order that names what is not there": header({"__metadata__": {"order": "parameter.bias"}}),
    "a shape beyond the bytes": header({"weight": {**TENSOR, "shape": [1 << 60]}, "__metadata__": {"order": ""}}),
    "a shape that overflows": header({"weight": {**TENSOR, "shape": [1 << 62, 1 << 62]}}) + b"\0" * 8,
    "a negative shape": header({"weight": {**TENSOR, "shape": [-2]}}) + b"\0" * 8,
    "offsets beyond the end": header({"weight": {**TENSOR, "data_offsets": [0, 1 << 40]}}) + b"\0" * 8,
    "offsets that overlap": header({"weight": TENSOR, "bias": TENSOR}) + b"\0" * 8,
    "a dtype that nobody knows": header({"weight": {**TENSOR, "dtype": "F7"}}) + b"\0" * 8,
    "metadata that is a list": header({"__metadata__": []}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_with_the_right_hash_is_refused_by_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "c")
    manifest = whole(url, 60)
    data, folder = FILES[name], folder_of(url, 60)
    file = File("layer-00001.safetensors", len(data), hashlib.sha256(data).hexdigest())
    (Path(folder) / file.name).write_bytes(data)
    manifest = Manifest(
        job="job", step=60, fingerprint="code", loss=1.0, files={**manifest.files, 1: (file, manifest.files[1][1])}
    )
    (Path(folder) / MANIFEST).write_bytes(manifest_to_json(manifest))
    with pytest.raises(CheckpointCorrupt, match="layer-00001"):
        read_layer(folder, manifest, 1)
    assert main(["checkpoint", "export", url, "--out", str(tmp_path / "o")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "layer-00001" in line
    assert not (tmp_path / "o").exists()


def test_a_file_larger_than_its_manifest_says_is_not_read_whole(tmp_path: Path) -> None:
    url = str(tmp_path / "c")
    manifest = whole(url, 60)
    path = Path(folder_of(url, 60)) / "layer-00000.safetensors"
    with path.open("r+b") as stream:
        stream.truncate(1 << 40)  # sparse: a terabyte
    with pytest.raises(CheckpointCorrupt, match="layer-00000"):
        read_layer(folder_of(url, 60), manifest, 0)
    assert newest_whole(url) is None


def test_a_manifest_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    url = str(tmp_path / "c")
    whole(url, 50)
    whole(url, 60)
    with (Path(folder_of(url, 60)) / MANIFEST).open("r+b") as stream:
        stream.truncate(1 << 40)
    found = newest_whole(url)
    assert found is not None
    assert found.step == 50


@pytest.mark.parametrize("name", ["step-" + "9" * 200, "step-\x1b[2J", "step-00000070\n", "step--0000001"])
def test_a_folder_with_a_strange_name_is_left_alone(name: str, tmp_path: Path) -> None:
    url = str(tmp_path / "c")
    whole(url, 50)
    (tmp_path / "c" / name).mkdir()
    assert [f.step for f in find_checkpoints(url)] == [50]


@pytest.mark.parametrize("told", [b"[" * 30_000, b"\xff", b"[1]", b'{"loss": 1}', b'{"loss": "0x1p99999"}'])
def test_an_evaluation_that_cannot_be_read_hides_no_checkpoint(
    told: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A coordinator that looks for checkpoints ended with what was raised here, each time that it was started."""
    url = str(tmp_path / "c")
    whole(url, 50)
    (Path(folder_of(url, 50)) / evaluation_file.FILE).write_bytes(told)
    (found,) = find_checkpoints(url)
    assert found.manifest is not None
    assert found.evaluated == {}
    assert main(["checkpoint", "ls", url]) == 0
    assert "complete" in capsys.readouterr().out

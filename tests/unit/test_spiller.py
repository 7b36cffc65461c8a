"""Kept tensors that go to disk: what comes back, what stays, and a disk that is full."""

import errno
import logging
import os
import tempfile
from io import FileIO
from pathlib import Path

import pytest
import torch

from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, load_job
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.plan import Plan, StagePlan
from culm.pipeline.tensors.raw import bytes_of
from culm.pipeline.tensors.values import Value
from culm.stage_server.compute.device import CPU
from culm.stage_server.spiller import Allowance, written
from tests.unit.test_handing_on import EXAMPLES, weights_after


def a_job() -> Job:
    """Boundary tensors of 8 KiB."""
    changes = ["job.steps=8", "pipeline.pipelines=2", "pipeline.microbatches=3", "data.microbatch=32"]
    return load_job(EXAMPLES / "digits_mlp.toml", [*changes, "pipeline.stages=3"])


def test_what_is_read_back_is_what_was_written(tmp_path: Path) -> None:
    tensors = (
        ("a", torch.randn(3, 5)),
        ("b", torch.randn(7).bfloat16()),
        ("c", torch.tensor([], dtype=torch.int64)),
        ("d", torch.tensor([[True, False]])),
        ("e", torch.tensor(float("nan"))),
        ("f", torch.arange(9)),
    )
    value = Value(tensors, squared_norms=(2.0,), tallies=(1.0,))
    with tempfile.TemporaryFile(dir=tmp_path, buffering=0) as file:
        same = written(value, file)
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    assert (same.squared_norms, same.tallies, same.size) == ((2.0,), (1.0,), value.size)
    for (name, before), (other, after) in zip(value.tensors, same.tensors, strict=True):
        assert (name, before.shape, before.dtype) == (other, after.shape, after.dtype)
        assert bytes(bytes_of(before)) == bytes(bytes_of(after))


def test_what_lies_on_disk_keeps_no_file_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    kept = []
    for number in range(100):
        with tempfile.TemporaryFile(dir=tmp_path, buffering=0) as file:
            kept.append(written(Value.single(torch.full((1024,), number)), file))
    assert len(set(os.listdir("/proc/self/fd")) - before) < 10, "other threads of this process may open some"
    assert [int(value.tensors[0][1][-1]) for value in kept] == list(range(100))


def test_a_full_disk_says_so() -> None:
    with FileIO("/dev/full", "w") as full, pytest.raises(OSError, match="No space left") as raised:
        written(Value.single(torch.zeros(4096)), full)
    assert raised.value.errno == errno.ENOSPC


def test_what_layers_leave_of_the_memory_is_for_kept_tensors() -> None:
    plan = Plan(term=1, generation=1, era=0, step=0, stages=(StagePlan(0, 2, ("n0",)), StagePlan(2, 3, ("n1",))))
    layers = (LayerBytes(12, 4), LayerBytes(12, 4), LayerBytes(24, 8))
    assert Allowance(memory=100, layers=layers).bytes(plan, "n0") == 100 - 32
    assert Allowance(memory=10, layers=layers).bytes(plan, "n0") == 0
    assert Allowance(memory=100, layers=layers, above=7).bytes(plan, "n0") == 7
    assert Allowance(layers=layers).bytes(plan, "n0") is None, "nobody knows what it may use"


def test_a_run_with_tensors_on_disk_has_the_same_bits(tmp_path: Path) -> None:
    job = a_job()
    weights, spilled = weights_after(job, CPU, Allowance(above=1, folder=str(tmp_path)))
    assert spilled > 0
    assert weights == run_plain(job).sha256
    assert list(tmp_path.iterdir()) == []


def test_without_a_disk_the_tensors_stay_and_one_line_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = a_job()
    with caplog.at_level(logging.WARNING, "culm.spiller"):
        weights, spilled = weights_after(job, CPU, Allowance(above=1, folder=str(tmp_path / "missing")))
    assert spilled == 0
    assert weights == run_plain(job).sha256
    (line,) = [record.getMessage() for record in caplog.records if record.name == "culm.spiller"]
    assert line.startswith(f"cannot write kept tensors to {tmp_path / 'missing'}: ")
    assert line.endswith("make room there, or name another folder with --spill-folder")

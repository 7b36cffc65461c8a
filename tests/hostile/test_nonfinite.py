"""Numbers that are not finite: the run stops before they reach the weights, or leaves the step out (rule 18)."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, Stopped, run_plain
from culm.pipeline.clip import stop_in_words
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome, RunFailed
from tests.hostile.commands import in_process
from tests.hostile.job_files import ENVIRONMENT, ROOT, job_text, make_job
from tests.hostile.jobs import CLASSES, WIDTH

# A NaN in a sample: the loss is NaN. An infinite gradient behind a finite loss.
CASES: dict[str, dict[str, Any]] = {
    "loss": {"dataset": "tests.hostile.jobs:poisoned"},
    "gradient": {"layers": "tests.hostile.jobs:exploding", "args": "bound = 2.3"},
}


def run(job: Job, folder: Path) -> tuple[Outcome, list[pb.ListEventsResponse]]:
    events: list[pb.ListEventsResponse] = []
    with LocalCluster(job, ROOT, 2, folder=folder, patience=20.0) as cluster:
        return train(cluster, lambda status, new, outcome: events.extend(new)), events


@pytest.mark.parametrize("clip", ["", "clip_norm = 0.5"], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("case", CASES)
def test_a_step_that_is_skipped_changes_nothing(case: str, clip: str, tmp_path: Path) -> None:
    """Weights, BatchNorm's buffers and AdamW's state are those of the steps before, here as in the plain loop."""
    job = make_job(train=f'nonfinite = "skip"\n{clip}', **CASES[case])
    plain = run_plain(job)
    outcome, events = run(job, tmp_path / "run")
    skipped = [event for event in events if event.kind == "skipped"]
    assert skipped, "the case is one"
    assert len(skipped) < job.job.steps
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    assert all(bool(t.isfinite().all()) for _, state in outcome.layers for t in state.values())
    assert (case == "loss") == any(math.isnan(x) for x in outcome.losses)
    told = json.loads(json.dumps(outcome.as_json(), allow_nan=False))
    assert [x is None for x in told["losses"]] == [math.isnan(x) for x in outcome.losses]


@pytest.mark.parametrize("case", CASES)
def test_a_run_stops_where_its_plain_loop_stops(case: str, tmp_path: Path) -> None:
    job = make_job(**CASES[case])
    with pytest.raises(Stopped) as plain:
        run_plain(job)
    with pytest.raises(RunFailed) as failed:
        run(job, tmp_path / "run")
    assert str(failed.value) == str(plain.value)
    assert failed.value.code == 1, "no job file is wrong"


class Fills(nn.Module):
    """Puts a value into some places of what it is given; a mask would have -inf there."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(torch.arange(x.shape[-1]) == 1, self.value)


class Finite(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.nan_to_num(0.0, 0.0, 0.0)


def filled(value: float, mended: bool) -> list[nn.Module]:
    middle = [Fills(value), Finite()] if mended else [Fills(value)]
    return [nn.Linear(WIDTH, WIDTH), *middle, nn.Linear(WIDTH, CLASSES)]


def divided(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(y, target) / torch.zeros(())


def filling(value: str, mended: str, **more: Any) -> Job:
    return make_job(layers=f"{__name__}:filled", args=f"value = {value}, mended = {mended}", **more)


def test_a_run_that_would_stop_in_its_first_step_does_not_begin() -> None:
    """It passed the trial, and the run said that the learning rate was to be lowered."""
    with pytest.raises(JobError, match=r"^model\.layers: layer 1 \(Fills\) returns nan for the first microbatch"):
        check_job(filling("nan", "false"))
    with pytest.raises(JobError, match=r"^train\.loss: the loss is inf for the first microbatch, though no layer"):
        check_job(make_job(loss=f"{__name__}:divided"))


@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_a_layers_nan_that_does_not_reach_the_loss_is_no_mistake(value: str) -> None:
    check_job(filling(value, "true"))


def test_a_job_that_skips_such_steps_may_begin_with_one() -> None:
    check_job(filling("nan", "false", train='nonfinite = "skip"'))


def test_samples_with_a_nan_are_no_layers_mistake() -> None:
    check_job(make_job(dataset="tests.hostile.jobs:poisoned", data="shuffle = false\nargs = { at = 0 }"))


def test_in_the_first_step_no_learning_rate_is_at_fault() -> None:
    assert "correct the data, the layers or the loss" in stop_in_words(0, "the loss of microbatch 0 is nan")
    assert "learning rate" not in stop_in_words(0, "the loss of microbatch 0 is nan")
    assert "lower the learning rate" in stop_in_words(1, "the loss of microbatch 0 is nan")


def test_the_last_line_says_step_and_layer(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(job_text(**CASES["gradient"]))
    done = in_process("run", str(path), "--json", folder=tmp_path, **ENVIRONMENT)
    last = done.err.strip().splitlines()[-1]
    assert done.code == 1, done.err
    assert "the gradient of layer" in last
    assert 'train.nonfinite to "skip"' in last


def test_the_plain_loop_is_as_before_where_all_is_finite() -> None:
    one, other = (run_plain(make_job(train=f'nonfinite = "{mode}"')) for mode in ("stop", "skip"))
    assert isinstance(one, PlainResult)
    assert one.sha256 == other.sha256


@pytest.mark.slow
def test_verify_says_that_both_stop(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(job_text(**CASES["loss"]))
    words = [sys.executable, "-m", "culm", "verify", str(path), "--kills", "0"]
    done = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert "is nan" in last
    assert last.endswith("; the plain loop stops there as well")

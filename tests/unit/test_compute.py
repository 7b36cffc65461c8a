"""The torch side of a node: what the middle of a step must not lose, and what a commit must drop."""

from pathlib import Path

import torch

from benchmarks.paced import WIDTH, job_file
from culm.pipeline.job import load_job
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import CPU
from culm.stage_server.worker.work import Apply, Arrange, Run
from tests.short import duty, unit

OWN, STANDBY = 1, 2


def arrange(anew: bool) -> Arrange:
    duties = (duty(OWN), range(1, 2)), (duty(STANDBY), range(2, 3))
    return Arrange(layers=(OWN, STANDBY), duties=duties, stages=3, step=0, anew=anew)


def made(tmp_path: Path) -> tuple[Compute, Value]:
    """A node that owns stage 1 of three and stands by for stage 2, with a forward of each behind it."""
    settings = {"steps": 2, "stages": 3, "microbatches": 1, "redundancy": "eager"}
    job = load_job(job_file(tmp_path, forward=0.0, backward=0.0, **settings))
    compute = Compute(job, ModelSource(job), CPU)
    compute.do(arrange(anew=True))
    x = Value.single(torch.ones(1, WIDTH))
    compute.do(Run(instruction=unit(OWN, "F", 0), step=0, tenure=1, operand=x))
    return compute, x


def test_catching_up_in_the_middle_of_a_step_leaves_its_graphs(tmp_path: Path) -> None:
    compute, x = made(tmp_path)
    compute.do(Apply(0, 1.0, ((STANDBY, (Value(()),)),), catch_up=True))
    gradient = compute.do(Run(instruction=unit(OWN, "B", 0), step=0, tenure=1, operand=x)).value
    assert gradient is not None
    assert gradient.tensor().shape == (1, WIDTH)


def test_the_graph_of_a_redundant_forward_serves_its_heir_and_is_counted(tmp_path: Path) -> None:
    compute, x = made(tmp_path)
    ahead = compute.do(Run(instruction=unit(STANDBY, "F", 0), step=0, tenure=-1, operand=x))
    assert ahead.kept_bytes > 0
    compute.do(arrange(anew=False))
    assert compute.do(Run(instruction=unit(STANDBY, "B", 0), step=0, tenure=2, operand=None)).value is not None

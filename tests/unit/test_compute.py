"""The torch side of a node: what the middle of a step must not lose, and what a commit must drop."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import TensorDataset

from benchmarks.paced import WIDTH, job_file
from culm.pipeline.job import load_job
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute import loading
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import CPU
from culm.stage_server.worker.work import Apply, Arrange, Load, Run
from tests.short import duty, unit

OWN, STANDBY = 1, 2
PAIR = '["tuple",0,1]'
GRADIENT = Value.gradients({0: torch.ones(1, WIDTH)})


def arrange(anew: bool) -> Arrange:
    duties = (duty(OWN), range(1, 2)), (duty(STANDBY), range(2, 3))
    return Arrange(layers=(OWN, STANDBY), duties=duties, stages=3, step=0, anew=anew)


def made(tmp_path: Path) -> tuple[Compute, Value]:
    """A node that owns stage 1 of three and stands by for stage 2, with a forward of each behind it."""
    settings = {"steps": 2, "stages": 3, "microbatches": 1, "redundancy": "eager"}
    job = load_job(job_file(tmp_path, forward=0.0, backward=0.0, **settings))
    compute = Compute(job, ModelSource(job), CPU)
    compute.do(arrange(anew=True))
    x = Value.activation(torch.ones(1, WIDTH, requires_grad=True), torch.zeros(1, WIDTH))
    compute.do(Run(instruction=unit(OWN, "F", 0), step=0, tenure=1, operands=(x,)))
    return compute, x


def test_catching_up_in_the_middle_of_a_step_leaves_its_graphs(tmp_path: Path) -> None:
    compute, _ = made(tmp_path)
    compute.do(Apply(0, 1.0, ((STANDBY, (Value(()),)),), catch_up=True))
    gradient = compute.do(Run(instruction=unit(OWN, "B", 0), step=0, tenure=1, operands=(GRADIENT,))).value
    assert gradient is not None
    assert gradient.tensor().shape == (1, WIDTH)


def test_the_graph_of_a_redundant_forward_serves_its_heir_and_is_counted(tmp_path: Path) -> None:
    compute, x = made(tmp_path)
    ahead = compute.do(Run(instruction=unit(STANDBY, "F", 0), step=0, tenure=-1, operands=(x,)))
    assert ahead.kept_bytes > 0
    compute.do(arrange(anew=False))
    assert compute.do(Run(instruction=unit(STANDBY, "B", 0), step=0, tenure=2)).value is not None


def test_an_input_requires_a_gradient_if_the_output_of_the_stage_before_did(tmp_path: Path) -> None:
    """In one process it would not, and torch may have other kernels for it then."""
    compute, x = made(tmp_path)
    compute.layer(OWN).module.requires_grad_(False)
    constant = Value.activation(torch.ones(1, WIDTH), torch.zeros(1, dtype=torch.int64))
    for operand in (x, constant):
        output = compute.do(Run(instruction=unit(OWN, "F", 0), step=0, tenure=1, operands=(operand,))).value
        assert output is not None
        assert not any(tensor.requires_grad for _, tensor in output.tensors), "the name tells it, also on the wire"
        assert output.output_and_target()[0].requires_grad is (operand is x)
        gradient = compute.do(Run(instruction=unit(OWN, "B", 0), step=0, tenure=1, operands=(GRADIENT,))).value
        assert gradient is not None
        assert bool(gradient.tensors) is (operand is x)


def test_whole_numbers_require_no_gradient_whatever_their_name() -> None:
    wrong = Value((("output.0", torch.ones(1, dtype=torch.int64)), ("output.1", torch.ones(1))), structure=PAIR)
    whole, real = wrong.output_and_target()
    assert (whole.requires_grad, real.requires_grad) == (False, True)


def test_a_target_travels_beside_the_activations_and_only_the_first_stage_loads(tmp_path: Path) -> None:
    settings = {"steps": 2, "stages": 3, "microbatches": 1, "redundancy": "off"}
    job = load_job(job_file(tmp_path, forward=0.0, backward=0.0, **settings))
    value, nodes = None, []
    for stage in range(3):  # a node each
        compute = Compute(job, ModelSource(job), CPU)
        compute.do(
            Arrange(layers=(stage,), duties=((duty(stage), range(stage, stage + 1)),), stages=3, step=0, anew=True)
        )
        operands = (value,) if value is not None else ()
        value = compute.do(Run(instruction=unit(stage, "F", 0), step=0, tenure=1, operands=operands)).value
        nodes.append(compute)
        if value is not None:
            _, target = value.output_and_target()
            assert torch.equal(target, Microbatches(job, ModelSource(job).dataset()).microbatch(0, 0, 0)[1])
    assert [compute._loading is not None for compute in nodes] == [True, False, False]
    assert value is None, "nobody takes the loss, but for the tallies"
    assert len(nodes[2]._stages[duty(2)].tallies()) == job.tally_form.trained


def spoils(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    target.add_(1.0)
    return (output - target).mean()


def test_a_loss_may_write_into_its_target(tmp_path: Path) -> None:
    settings = {"steps": 2, "stages": 3, "microbatches": 1, "redundancy": "off"}
    job = load_job(job_file(tmp_path, forward=0.0, backward=0.0, **settings), [f"train.loss={__name__}:spoils"])
    compute, given = Compute(job, ModelSource(job), CPU), torch.zeros(1, WIDTH)
    compute.do(Arrange(layers=(2,), duties=((duty(2), range(2, 3)),), stages=3, step=0, anew=True))
    x = Value.activation(torch.ones(1, WIDTH, requires_grad=True), given)
    told = []
    for _ in range(2):  # an heir may run it again
        compute.do(Run(instruction=unit(2, "F", 0), step=0, tenure=1, operands=(x,)))
        told.append(compute._stages[duty(2)].tallies())
    assert told[0] == told[1]
    assert not given.any()


class Flaky(TensorDataset):
    """Its storage fails as often as ``errors`` says, once each."""

    errors: ClassVar[list[OSError]] = []

    def __getitem__(self, index: int) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return super().__getitem__(index)  # type: ignore[no-untyped-call]


def test_a_storage_of_samples_that_fails_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes that raised at once failed the run: as the job's fault."""
    monkeypatch.setattr(loading, "PAUSES", (0.0, 0.0))
    compute, _ = made(tmp_path)
    flaky = Flaky(torch.zeros(16, WIDTH), torch.zeros(16, dtype=torch.int64))
    compute._loading = loading.Loading(compute._job, None)
    compute._loading._opened["data"] = Microbatches(compute._job, flaky)
    Flaky.errors = [TimeoutError("the mount does not answer"), OSError(5, "Input/output error")]
    compute.do(Load(0, 0, 0))
    assert Load(0, 0, 0) in compute.loaded
    Flaky.errors = [FileNotFoundError("shard-7 is missing")]
    with pytest.raises(FileNotFoundError):
        compute.do(Load(0, 0, 1))

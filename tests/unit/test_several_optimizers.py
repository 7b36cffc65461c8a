"""Groups that name optimizers: each parameter is stepped by its own, in every cut, in a copy, and under a schedule."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.optimizers import OWN, Several
from culm.stage_server.compute.copying import try_copying
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.footprint import moments
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.optimizer_state import held_over
from tests.unit.exactness import ADAMW, SGD, build_all, digest, gives_the_plain_loops_bits, make_job, run_stages

HERE = "tests.unit.test_several_optimizers"
MUON = {"optimizer": "torch.optim:Muon", "lr": 0.02, "weight_decay": 0.01}
STEPS = 6


def muon_for_matrices(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    """And no decay for biases, which the job's own steps: layers have one, two or three groups of two optimizers."""
    return MUON if parameter.dim() == 2 else {"weight_decay": 0.0} if name == "bias" else {}


def adamw_for_vectors(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    """The job's own takes matrices alone."""
    return {"optimizer": "torch.optim:AdamW", "lr": 0.01} if parameter.dim() < 2 else {}


def misspelt(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {**MUON, "momentun": 0.9} if parameter.dim() == 2 else {}


def unknown(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {"optimizer": "torch.optim:Muom"} if parameter.dim() == 2 else {}


def a_class(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {"optimizer": torch.optim.SGD}


def numpys(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {"lr": np.float32(0.02)}


def refused(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {**MUON, "adjust_lr_fn": "match_rms_adamv"} if parameter.dim() == 2 else {}


def sgd_for_matrices(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {"optimizer": "torch.optim:SGD", "lr": 0.02, "momentum": 0.9} if parameter.dim() == 2 else {}


def adamw_for_all(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {}


def needs_a_closure(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {"optimizer": "torch.optim:LBFGS"} if parameter.dim() == 2 else {}


def layers() -> list[Any]:
    block = partial(nn.Sequential, nn.Linear(8, 8), nn.LayerNorm(8))
    return [block, partial(nn.LayerNorm, 8), partial(nn.Linear, 8, 8, bias=False), partial(nn.Linear, 8, 4)]


def made() -> list[nn.Module]:
    return [make() for make in layers()]


def job_of(groups: str, stages: int = 2, optimizer: tuple[str, str] = ADAMW, **train: Any) -> Job:
    job = make_job(stages, 3, optimizer, True, count=4)
    changes = {"groups": f"{HERE}:{groups}", **train}
    return job.model_copy(
        update={
            "job": job.job.model_copy(update={"steps": STEPS}),
            "model": job.model.model_copy(update={"layers": f"{HERE}:made", "args": {}}),
            "train": job.train.model_copy(update=changes),
        }
    )


COSINE: dict[str, Any] = {"schedule": "torch.optim.lr_scheduler:CosineAnnealingLR", "schedule_args": {"T_max": STEPS}}
ONE_CYCLE: dict[str, Any] = {
    "schedule": "torch.optim.lr_scheduler:OneCycleLR",
    "schedule_args": {"max_lr": [0.1, 0.2, 0.3], "total_steps": STEPS, "cycle_momentum": False},
}


@pytest.mark.parametrize("schedule", [{}, COSINE, ONE_CYCLE], ids=["none", "cosine", "one value a group"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_cut_gives_the_plain_loops_bits(stages: int, schedule: dict[str, Any]) -> None:
    job = job_of("muon_for_matrices", stages, average=0.9, **schedule)
    check_job(job)
    gives_the_plain_loops_bits(job)


def test_the_jobs_own_may_be_the_one_that_takes_matrices_alone() -> None:
    job = job_of("adamw_for_vectors", optimizer=("torch.optim:Muon", "lr = 1e-2"), **COSINE)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("optimizer", [ADAMW, SGD])
def test_a_copy_goes_on_with_the_state_of_each(optimizer: tuple[str, str]) -> None:
    job = job_of("muon_for_matrices", optimizer=optimizer, **COSINE)
    source = ModelSource(job)
    for name in source.optimizers():
        try_copying(partial(source.alone, name), source.parameters_like(name), name, CPU)
    owners, copies = build_all(source), build_all(ModelSource(job))
    assert [type(owner.optimizer).__name__ for owner in owners] == [
        "Several",
        optimizer[0].partition(":")[2],
        "Muon",
        "Several",
    ], "a layer has what its parameters need"
    run_stages(job, owners, source, range(3))
    for owner, copy in zip(owners, copies, strict=True):
        copy.install(owner.export())
    run_stages(job, copies, source, range(3, STEPS))
    assert digest(copies) == run_plain(job).sha256


def test_each_steps_its_own_parameters_as_it_would_alone() -> None:
    matrix, vector = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
    alone = [nn.Parameter(parameter.detach().clone()) for parameter in (matrix, vector)]
    parts: list[torch.optim.Optimizer] = [torch.optim.AdamW([vector]), torch.optim.Muon([matrix], lr=0.02)]
    several = Several(parts, [1, 0])
    others: list[torch.optim.Optimizer] = [torch.optim.Muon(alone[:1], lr=0.02), torch.optim.AdamW(alone[1:])]
    assert [group["params"] for group in several.param_groups] == [[matrix], [vector]]
    for _ in range(3):
        for here, there in zip((matrix, vector), alone, strict=True):
            here.grad = torch.randn_like(here)
            there.grad = here.grad.clone()
        several.param_groups[0]["lr"] *= 0.5
        others[0].param_groups[0]["lr"] *= 0.5
        several.step()
        for other in others:
            other.step()
    assert torch.equal(matrix, alone[0])
    assert torch.equal(vector, alone[1])
    assert set(several.state) == {matrix, vector}
    several.state.clear()
    assert not parts[0].state


@pytest.mark.parametrize("now", ["muon_for_matrices", "adamw_for_all"])
def test_state_of_another_optimizer_is_not_taken_over(now: str) -> None:
    """A run is resumed with other groups: Muon took SGD's momentum for its own, and AdamW found no moments."""
    before, after = job_of("sgd_for_matrices"), job_of(now)
    source, owners = ModelSource(before), build_all(ModelSource(before))
    run_stages(before, owners, source, range(2))
    resumed = build_all(ModelSource(after))
    for owner, copy in zip(owners, resumed, strict=True):
        copy.install(owner.export())
        assert copy.optimizer is not None
        assert not any(copy.optimizer.state.get(p, {}) for p in copy.module.parameters() if p.dim() == 2)
        assert all(copy.optimizer.state.get(p, {}) for p in copy.module.parameters() if p.dim() == 1)
    run_stages(after, resumed, ModelSource(after), range(2, STEPS))


def kept_by_muon(copy: HeldLayer) -> dict[str, torch.Tensor]:
    """Of each matrix, what the optimizer has."""
    assert copy.optimizer is not None
    matrices = ((name, p) for name, p in copy.module.named_parameters() if p.dim() == 2)
    return {f"{name}.{key}": x for name, p in matrices for key, x in copy.optimizer.state.get(p, {}).items()}


def test_another_optimizer_of_the_job_leaves_those_that_groups_name_as_they_were() -> None:
    """A run was resumed with SGD in place of AdamW, and Muon's momentum was gone as well."""
    before, after = (job_of("muon_for_matrices", optimizer=each) for each in (ADAMW, SGD))
    owners = build_all(ModelSource(before))
    run_stages(before, owners, ModelSource(before), range(2))
    resumed = build_all(ModelSource(after))
    for owner, copy in zip(owners, resumed, strict=True):
        copy.install(Value(held_over(owner.export().tensors, None)))
        there, here = kept_by_muon(owner), kept_by_muon(copy)
        assert there.keys() == here.keys()
        assert all(torch.equal(there[name], here[name]) for name in there)
        assert copy.optimizer is not None
        assert not any(copy.optimizer.state.get(p, {}) for p in copy.module.parameters() if p.dim() == 1)
    assert any(map(kept_by_muon, resumed))
    run_stages(after, resumed, ModelSource(after), range(2, STEPS))


def test_an_option_that_has_changed_is_the_jobs_own_optimizers() -> None:
    job = job_of("muon_for_matrices")
    owners = build_all(ModelSource(job))
    run_stages(job, owners, ModelSource(job), range(1))
    entries = owners[0].export().tensors  # Muon's group 0, and AdamW's group 1
    dropped = {name for name, _ in entries} - {name for name, _ in held_over(entries, frozenset({"lr"}))}
    assert dropped == {"group.1.lr"}


def test_what_they_keep_is_counted() -> None:
    source = ModelSource(job_of("muon_for_matrices"))
    assert source.optimizers() == ["torch.optim:Muon", OWN]
    assert moments(source) == {(torch.float32, 1): 8, (torch.float32, 2): 4}


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("misspelt", "Muon raised TypeError: Muon.__init__() got an unexpected keyword argument 'momentun'"),
        ("numpys", "it returned lr = np.float32(0.02"),
        ("refused", "Muon raised ValueError: Adjust learning rate function match_rms_adamv is not supported"),
        ("unknown", "module 'torch.optim' has no 'Muom'"),
        ("a_class", 'the optimizer of 0.weight of layer 0 is a type; name it: {"optimizer": "torch.optim:Muon"}'),
        ("needs_a_closure", "the step of torch.optim:LBFGS wants a closure"),
    ],
)
def test_mistakes_are_named(groups: str, said: str) -> None:
    with pytest.raises(JobError, match=r"^train\.groups: ") as error:
        check_job(job_of(groups))
    assert said in str(error.value)

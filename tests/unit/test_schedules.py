"""Parameter groups and schedules give the bits of torch's own over the whole model, also where a copy goes on."""

import re
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler, SequentialLR, StepLR

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from tests.unit.exactness import (
    ADAMW,
    SGD,
    build_all,
    digest,
    gives_the_plain_loops_bits,
    make_job,
    run_stages,
)

HERE = "tests.unit.test_schedules"
TORCH = "torch.optim.lr_scheduler"
STEPS = 6

# ---- what a job may name --------------------------------------------------------------------------------------------


def no_decay_for_vectors(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {"weight_decay": 0.0} if parameter.dim() < 2 else {}


def slower_first_layers(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {"lr": 0.001, "weight_decay": 0.3} if layer < 2 else {"weight_decay": 0.3} if "weight" in name else {}


def by_turns(layer: int, name: str, parameter: torch.Tensor, seen: list[int] = []) -> dict[str, Any]:  # noqa: B006
    seen.append(layer)
    return {"weight_decay": float(len(seen))}


def misspelt(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {"weight_decy": 0.0}


def no_options(layer: int, name: str, parameter: torch.Tensor) -> float:
    return 0.1


def warmup(step: int, over: int) -> float:
    return min(1.0, (step + 1) / over)


def of_each_step(step: int) -> float:
    """Of the job's steps, and of no step after them."""
    return [1.0, 0.9, 0.8, 0.7, 0.6, 0.5][step]


def warmup_then_steps(optimizer: torch.optim.Optimizer, over: int) -> LRScheduler:
    first, then = LinearLR(optimizer, 0.1, total_iters=over), StepLR(optimizer, 1, gamma=0.7)
    return SequentialLR(optimizer, [first, then], milestones=[over])


class LateDecay(LambdaLR):
    """Changes another option, and only later."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, lambda step: 1.0)

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if self.last_epoch > 3:
            self.optimizer.param_groups[0]["weight_decay"] = 0.5


SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "cosine": (f"{TORCH}:CosineAnnealingLR", {"T_max": STEPS}),
    "steps": (f"{TORCH}:StepLR", {"step_size": 2}),
    "one_cycle": (f"{TORCH}:OneCycleLR", {"max_lr": 0.1, "total_steps": STEPS + 1}),
    "cyclic": (f"{TORCH}:CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2}),
    "restarts": (f"{TORCH}:CosineAnnealingWarmRestarts", {"T_0": 3}),
    "polynomial": (f"{TORCH}:PolynomialLR", {"total_iters": 4}),
    "factor": (f"{HERE}:warmup", {"over": 3}),
    "made": (f"{HERE}:warmup_then_steps", {"over": 2}),
    "just_so_many": (f"{HERE}:of_each_step", {}),  # the plain loop asked for one step more, and ended in a traceback
}


def job_with(optimizer: tuple[str, str] = SGD, stages: int = 3, **train: Any) -> Job:
    job = make_job(stages, 3, optimizer, True, count=5)
    of_job = job.job.model_copy(update={"steps": STEPS})
    return job.model_copy(update={"job": of_job, "train": job.train.model_copy(update=train)})


def scheduled(name: str) -> dict[str, Any]:
    schedule, arguments = SCHEDULES[name]
    return {"schedule": schedule, "schedule_args": arguments}


# ---- bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_over_layers_apart_is_torchs_over_the_whole_model(name: str) -> None:
    job = job_with(**scheduled(name))
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("groups", ["no_decay_for_vectors", "slower_first_layers"])
@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["adamw", "sgd"])
@pytest.mark.parametrize("name", ["cosine", "one_cycle"])
def test_groups_over_layers_apart_are_torchs_over_the_whole_model(
    groups: str, optimizer: tuple[str, str], name: str
) -> None:
    job = job_with(optimizer, groups=f"{HERE}:{groups}", **scheduled(name))
    check_job(job)
    gives_the_plain_loops_bits(job)


def test_a_value_for_each_group_is_the_models_groups_also_where_a_layer_has_one_of_them() -> None:
    groups = f"{HERE}:slower_first_layers"
    one_a_group = {"max_lr": [0.01, 0.1, 0.2], "total_steps": STEPS + 1}
    job = job_with(groups=groups, schedule=f"{TORCH}:OneCycleLR", schedule_args=one_a_group)
    gives_the_plain_loops_bits(job)


def test_they_change_what_is_learnt() -> None:
    """Else all of the above would hold if they were passed over."""
    jobs = [job_with(ADAMW), *(job_with(ADAMW, **scheduled(name)) for name in ("cosine", "factor"))]
    jobs += [job_with(ADAMW, groups=f"{HERE}:{groups}") for groups in ("no_decay_for_vectors", "slower_first_layers")]
    assert len({run_plain(job).sha256 for job in jobs}) == len(jobs)


@pytest.mark.parametrize("name", ["one_cycle", "made"])
def test_a_copy_of_a_layer_goes_on_as_its_owner_would_have(name: str) -> None:
    job = job_with(ADAMW, groups=f"{HERE}:slower_first_layers", **scheduled(name))
    source = ModelSource(job)
    owners = build_all(source)
    run_stages(job, owners, source, range(3))
    copies = build_all(ModelSource(job))
    for owner, copy in zip(owners, copies, strict=True):
        copy.install(owner.export())
    run_stages(job, copies, source, range(3, STEPS))
    assert digest(copies) == run_plain(job).sha256


def test_all_copies_of_a_layer_have_the_same_entries_whether_they_have_stepped_or_not() -> None:
    job = job_with(ADAMW, groups=f"{HERE}:slower_first_layers", **scheduled("one_cycle"))
    owners = build_all(ModelSource(job))
    run_stages(job, owners, ModelSource(job), range(3))
    copies = build_all(ModelSource(job))
    for owner, copy in zip(owners, copies, strict=True):
        copy.install(owner.export())
        assert [name for name, _ in copy.export().tensors] == [name for name, _ in owner.export().tensors]


# ---- a job that goes on otherwise -----------------------------------------------------------------------------------


def test_without_its_schedule_a_resumed_job_has_the_rate_that_it_names() -> None:
    before, now = job_with(ADAMW, **scheduled("cosine")), job_with(ADAMW)
    owners = build_all(ModelSource(before))
    run_stages(before, owners, ModelSource(before), range(3))
    copies = build_all(ModelSource(now))
    for owner, copy in zip(owners, copies, strict=True):
        copy.install(owner.export())
        if copy.optimizer is not None:
            assert [group["lr"] for group in copy.optimizer.param_groups] == [0.01]


def test_with_other_groups_each_parameter_keeps_its_own_state_and_the_options_of_the_new_job() -> None:
    before = job_with(ADAMW, groups=f"{HERE}:no_decay_for_vectors")
    now = job_with(ADAMW, groups=f"{HERE}:slower_first_layers")
    owners = build_all(ModelSource(before))
    run_stages(before, owners, ModelSource(before), range(2))
    copies = build_all(ModelSource(now))
    for owner, copy in zip(owners, copies, strict=True):
        if owner.optimizer is None or copy.optimizer is None:
            continue
        options = [{k: v for k, v in group.items() if k != "params"} for group in copy.optimizer.param_groups]
        copy.install(owner.export())
        assert [{k: v for k, v in g.items() if k != "params"} for g in copy.optimizer.param_groups] == options
        for theirs, mine in zip(owner.module.parameters(), copy.module.parameters(), strict=True):
            assert torch.equal(owner.optimizer.state[theirs]["exp_avg"], copy.optimizer.state[mine]["exp_avg"])


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ({"groups": f"{HERE}:by_turns"}, r"train.groups: it returned other options for 0.weight of layer 0"),
        ({"groups": f"{HERE}:misspelt"}, r"train.groups: SGD has no option 'weight_decy'.*weight_decay"),
        ({"groups": f"{HERE}:no_options"}, r"train.groups: it returned a float for 0.weight of layer 0"),
        ({"schedule": f"{TORCH}:ReduceLROnPlateau"}, r"train.schedule: it waits for a measured value"),
        ({"schedule": f"{TORCH}:StepLR"}, r"train.schedule: .*StepLR.* raised TypeError: .*step_size"),
        ({"schedule": f"{HERE}:warmup"}, r"train.schedule: called with step 0 it gives no number: TypeError: .*over"),
        ({"schedule": f"{HERE}:no_options"}, r"train.schedule: called with step 0 it gives no number"),
        ({"schedule": "torch.nn:Linear"}, r"train.schedule: .*Linear.* raised TypeError"),
        ({"schedule": f"{HERE}:nothing_like_it"}, r"train.schedule: module '.*' has no 'nothing_like_it'"),
    ],
)
def test_what_cannot_be_a_schedule_or_a_group_is_refused_before_anything_starts(
    train: dict[str, Any], says: str
) -> None:
    with pytest.raises(JobError) as refused:
        check_job(job_with(**train))
    assert re.search(says, str(refused.value)), str(refused.value)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ({"schedule": f"{HERE}:LateDecay"}, "it changes weight_decay from step 4 on"),
        (
            {"schedule": f"{TORCH}:OneCycleLR", "schedule_args": {"max_lr": 0.1, "total_steps": 4}},
            "what follows step 4 raised ValueError: Tried to step",
        ),
    ],
    ids=["changes_more_later", "is_shorter_than_the_job"],
)
def test_what_goes_wrong_at_a_later_step_is_found_before_the_first_one(train: dict[str, Any], says: str) -> None:
    with pytest.raises(JobError, match=says):
        check_job(job_with(ADAMW, **train))

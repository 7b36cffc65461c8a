"""Every optimizer of torch that steps parameter by parameter: over layers apart, and where a copy goes on."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.auditing import state_digest
from culm.stage_server.compute.copying import try_copying, try_going_on
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from tests.unit.exactness import build_all, digest, gives_the_plain_loops_bits, make_job, run_stages

HERE = "tests.unit.test_optimizers"
STEPS = 6
# LBFGS computes the loss again, and SparseAdam wants sparse gradients.
OTHERS = {"LBFGS": "wants a closure", "SparseAdam": ""}
KNOWN = sorted(name for name, made in vars(torch.optim).items() if isinstance(made, type) and name != "Optimizer")
ARGUMENTS = {"SGD": "lr = 0.1, momentum = 0.9, nesterov = true", "Adafactor": "lr = 0.01", "Rprop": "lr = 0.01"}


def matrices(count: int) -> list[Any]:
    """Muon takes nothing else."""
    return [partial(nn.Linear, 8, 8, bias=False)] * count + [partial(nn.Linear, 8, 4, bias=False)]


def job_of(optimizer: str) -> Job:
    name = optimizer if ":" in optimizer else f"torch.optim:{optimizer}"
    job = make_job(3, 3, (name, ARGUMENTS.get(optimizer, "lr = 1e-2")), True, count=5)
    schedule = {"schedule": "torch.optim.lr_scheduler:CosineAnnealingLR", "schedule_args": {"T_max": STEPS}}
    changed = {"job": job.job.model_copy(update={"steps": STEPS}), "train": job.train.model_copy(update=schedule)}
    if optimizer == "Muon":
        changed["model"] = job.model.model_copy(update={"layers": f"{HERE}:matrices"})
    return job.model_copy(update=changed)


@pytest.mark.parametrize("optimizer", [*(name for name in KNOWN if name not in OTHERS), "lion_pytorch:Lion"])
def test_over_layers_apart_and_in_a_copy_it_gives_the_plain_loops_bits(optimizer: str) -> None:
    job = job_of(optimizer)
    check_job(job)
    source = ModelSource(job)
    try_copying(source.optimizer, source.parameters_like(), job.train.optimizer, CPU)
    gives_the_plain_loops_bits(job)
    owners, copies = build_all(source), build_all(ModelSource(job))
    run_stages(job, owners, source, range(3))
    for owner, copy in zip(owners, copies, strict=True):
        copy.install(owner.export())
    run_stages(job, copies, source, range(3, STEPS))
    assert digest(copies) == run_plain(job).sha256


@pytest.mark.parametrize("optimizer", OTHERS)
def test_what_cannot_step_by_gradients_alone_is_refused_before_anything_starts(optimizer: str) -> None:
    with pytest.raises(JobError, match=rf"train.optimizer: .*{OTHERS[optimizer]}"):
        check_job(job_of(optimizer))


class CountsGradients(torch.optim.Optimizer):
    """Its group counts only the steps in which one of its parameters has a gradient."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += any(p.grad is not None for p in group["params"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"] / group["k"])


def test_an_optimizer_that_counts_by_any_layers_gradients_is_refused() -> None:
    """With a layer that has none in a step the weights were others than the plain loop's, and nothing was said."""
    with pytest.raises(JobError, match="cannot run on layers apart"):
        try_copying(CountsGradients, [torch.zeros(3, 2), torch.zeros(2)], "CountsGradients", CPU)


def test_an_optimizer_that_wants_a_gradient_of_every_parameter_is_taken() -> None:
    """It was refused as one that cannot be copied, though most models give every parameter a gradient in every step."""
    fused = partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)
    try_copying(fused, [torch.zeros(3, 2), torch.zeros(2)], "SGD", CPU)


@pytest.mark.parametrize(
    ("optimizer", "before", "after", "raises"),
    [
        (torch.optim.Adam, {}, {"amsgrad": True}, "KeyError: 'max_exp_avg_sq'"),
        (torch.optim.RMSprop, {}, {"momentum": 0.9}, "KeyError: 'momentum_buffer'"),
        (torch.optim.Adam, {"amsgrad": True}, {"amsgrad": False}, ""),
        (torch.optim.Adam, {}, {"eps": 1e-4, "weight_decay": 0.1}, ""),
        (torch.optim.SGD, {}, {"momentum": 0.9}, ""),  # it begins with the first gradient, as it does in step 0
    ],
)
def test_options_that_want_more_state_than_a_checkpoint_has_are_refused(
    optimizer: Any, before: dict[str, Any], after: dict[str, Any], raises: str
) -> None:
    """A run was resumed with amsgrad, and its nodes ended at their first step."""
    makes = [partial(optimizer, lr=0.1, **options) for options in (before, after)]
    like = [torch.zeros(3, 2), torch.zeros(2)]
    if not raises:
        try_going_on(makes[0], makes[1], frozenset(after), like, CPU)
        return
    with pytest.raises(JobError) as refused:
        try_going_on(makes[0], makes[1], frozenset(after), like, CPU)
    said = str(refused.value)
    assert said.startswith(f"train.optimizer_args: a step with the state of the checkpoint raised {raises}")
    assert f"; set {next(iter(after))} back, or export the weights" in said
    assert "\n" not in said


class ListFirst(torch.optim.Optimizer):
    """Keeps a list of tensors before a number."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("seen", []).append(parameter.grad.clone())
                state["count"] = state.get("count", 0) + 1
                parameter.add_(state["seen"][-1], alpha=-group["lr"] / state["count"])


def test_a_copys_state_has_the_digest_of_the_first_ones() -> None:
    """A list came last in a copy: holders that compared their state took each other for wrong."""

    def layer() -> HeldLayer:
        module = nn.Linear(2, 2, bias=False)
        return HeldLayer(0, module, ListFirst(module.parameters()), CPU)

    first, copy = layer(), layer()
    first.apply(Value((("grad.weight", torch.ones(2, 2)),)), 1.0, 0)
    copy.install(first.export())
    assert state_digest(copy, CPU) == state_digest(first, CPU)

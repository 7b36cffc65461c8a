"""Layers that write into their input work wherever the model is cut, and change nothing that another one keeps."""

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.gradients import own_gradients
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.stage import Stage
from tests.hostile.stages import job_of_parts, train


class Doubled(nn.Module):
    """Writes where autograd does not look."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.mul_(2.0)
        return x


class Shifted(nn.Module):
    """Writes where not even the version is counted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.data.add_(0.5)
        return x


class Reshaped(nn.Sequential):
    """Writes into a view of its input."""

    def __init__(self) -> None:
        super().__init__(nn.Unflatten(1, (2, 4)), nn.LeakyReLU(0.1, inplace=True), nn.Flatten())


class Next(nn.Module):
    """Whole numbers, which need no gradient: nothing but a comparison shows that they were written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class SometimesDoubled(nn.Module):
    """Leaves its first inputs as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x.mul_(2.0) if self.seen > 2 else x * 2.0


def floats() -> list[nn.Module]:
    relu, dropout = nn.ReLU(inplace=True), nn.Dropout(0.3, inplace=True)
    head = [nn.Linear(8, 8), relu, nn.Linear(8, 8), Reshaped(), nn.Linear(8, 8), dropout]
    return [*head, nn.Linear(8, 8), Doubled(), Shifted(), nn.Linear(8, 4)]


class Dropped(nn.Module):
    """Left out of some microbatches, but not of the first: there it hands on what it is given. x: [B, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x) if torch.rand(()) > 0.3 else x
        return y


def dropped() -> list[nn.Module]:
    return [nn.Linear(8, 8), Dropped(), nn.ReLU(inplace=True), nn.Linear(8, 4)]


def written_at_once() -> list[nn.Module]:
    """The dataset's samples are written, too."""
    return [Doubled(), nn.ReLU(inplace=True), nn.Linear(8, 4)]


def numbers() -> list[nn.Module]:
    return [
        Next(),
        nn.Identity(),
        Next(),
        Next(),
        nn.Embedding(10, 8),
        nn.Flatten(),
        nn.ReLU(inplace=True),
        nn.Linear(16, 4),
    ]


def sometimes() -> list[nn.Module]:
    return [nn.Linear(8, 8), SometimesDoubled(), nn.Linear(8, 4)]


def of_floats() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(30, 8, generator=generator), torch.randint(0, 4, (30,), generator=generator))


def of_numbers() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randint(0, 6, (30, 2), generator=generator)
    return TensorDataset(numbers, torch.randint(0, 4, (30,), generator=generator))


def job_of(layers: str) -> Job:
    return job_of_parts(__name__, layers, "of_numbers" if layers == "numbers" else "of_floats")


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "in two halves"])
@pytest.mark.parametrize("layers", ["floats", "dropped", "written_at_once", "numbers"])
def test_every_cut_gives_the_plain_loops_bits(layers: str, splits: bool) -> None:
    job = job_of(layers)
    check_job(job)
    plain = run_plain(job).sha256
    inner = range(1, ModelSource(job).layer_count)
    for count in {*range(min(4, len(inner))), len(inner)}:  # up to four stages, and every layer a stage
        for cuts in combinations(inner, count):
            assert train(job, cuts, splits) == plain, f"cut at {cuts}"


def test_one_that_writes_only_now_and_then_is_refused_by_name() -> None:
    job = job_of("sometimes")
    with pytest.raises(JobError, match=r"SometimesDoubled\) changes its input in place, but not always"):
        train(job, (1,), False)


class Exponential(torch.autograd.Function):
    """Keeps its output where autograd counts no version."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = x.exp().detach()
        return ctx.kept.view_as(ctx.kept)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * ctx.kept  # type: ignore[no-any-return]


class Unseen(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Exponential.apply(x)  # type: ignore[no-untyped-call]


class Bias(nn.Module):
    """Hands on a view of its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bias.expand_as(x[:1])


def loss_in_place(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.mul_(2.0), target)


def after_sigmoid() -> list[nn.Module]:
    return [nn.Linear(8, 8), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(8, 4)]


def behind_a_view() -> list[nn.Module]:
    return [
        nn.Linear(8, 8),
        nn.Softmax(-1),
        nn.Unflatten(1, (2, 4)),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(8, 4),
    ]


def after_half() -> list[nn.Module]:
    return [nn.Linear(8, 8), Half(), nn.ReLU(inplace=True), nn.Linear(4, 4)]


class Half(nn.Module):
    """One of several views that an operation gives: torch lets nobody write into it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.chunk(2, dim=1)[0]


def unseen() -> list[nn.Module]:
    return [nn.Linear(8, 8), Unseen(), nn.ReLU(inplace=True), nn.Linear(8, 4)]


def of_a_parameter() -> list[nn.Module]:
    return [Bias(), nn.ReLU(inplace=True), nn.Linear(8, 4)]


def sigmoid_last() -> list[nn.Module]:
    return [nn.Linear(8, 4), nn.Sigmoid()]


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ("after_sigmoid", r"layer 2 \(ReLU\) .* which the backward of layer 1 \(Sigmoid\) needs as it was"),
        ("behind_a_view", r"layer 3 \(ReLU\) .* which the backward of layer 1 \(Softmax\) needs as it was"),
        ("after_half", r"layer 2 \(ReLU\) .* which the backward of layer 1 \(Half\) needs as it was"),
        ("unseen", r"layer 2 \(ReLU\) .* which the backward of layer 1 \(Unseen\) needs as it was"),
        ("of_a_parameter", r"layer 1 \(ReLU\) .* which the parameter bias of layer 0 \(Bias\) keeps"),
    ],
)
def test_one_that_writes_over_what_a_backward_needs_is_refused_before_the_start(layers: str, said: str) -> None:
    """Cut between the two the run would go on, until it is cut elsewhere; all but one end with an error then."""
    with pytest.raises(JobError, match=said):
        check_job(job_of(layers))


def test_a_loss_that_writes_over_what_the_last_backward_needs_is_refused_before_the_start() -> None:
    job = job_of("sigmoid_last")
    train_section = job.train.model_copy(update={"loss": f"{__name__}:loss_in_place"})
    with pytest.raises(JobError, match=r"the loss writes .* which the backward of layer 1 \(Sigmoid\) needs as it was"):
        check_job(job.model_copy(update={"train": train_section}))


def flattened_last() -> list[nn.Module]:
    """The last layer hands on the memory of its input."""
    return [nn.Linear(8, 4), nn.Flatten()]


class Masked(nn.Module):
    """Hands on beside its output which samples count, as it was given it. x: [B, 8]."""

    def __init__(self, size: int, first: bool) -> None:
        super().__init__()
        self.inner, self.first = nn.Linear(8, size), first

    def forward(self, given: Any) -> Any:
        x, mask = (given, given[:, 0] > 0.0) if self.first else given
        return self.inner(x), mask


def masked() -> list[nn.Module]:
    return [Masked(8, first=True), Masked(4, first=False)]


def loss_of_masked(output: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    y, mask = output
    ignored = mask.logical_not_()
    return nn.functional.cross_entropy(y, target.masked_fill(ignored, -100), reduction="sum")


def metric_in_place(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.mul_(2.0).argmax(dim=1).eq(target).float().mean()


def linear_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Its backward does not read the output."""
    return (output * torch.arange(4.0)).sum()


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "in two halves"])
@pytest.mark.parametrize(
    ("layers", "loss", "metrics"),
    [
        ("flattened_last", "loss_in_place", {}),
        ("masked", "loss_of_masked", {}),
        ("flattened_last", "linear_loss", {"accuracy": f"{__name__}:metric_in_place"}),
    ],
)
def test_a_loss_or_metric_may_write_into_what_the_last_layer_hands_on(
    layers: str, loss: str, metrics: dict[str, str], splits: bool
) -> None:
    job = job_of(layers)
    section = job.train.model_copy(update={"loss": f"{__name__}:{loss}", "metrics": metrics})
    job = job.model_copy(update={"train": section})
    check_job(job)
    plain = run_plain(job).sha256
    for cuts in ((), (1,)):
        assert train(job, cuts, splits) == plain, f"cut at {cuts}"


class LossSometimesInPlace:
    """Leaves the first outputs as they are."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return nn.functional.cross_entropy(output.mul_(2.0) if self.seen > 2 else output * 2.0, target)


def test_a_loss_that_writes_only_now_and_then_is_refused_by_name() -> None:
    job = job_of("flattened_last")
    held = HeldLayer.build(ModelSource(job), 1, CPU)
    stage = Stage(job, 0, [held], False, True, LossSometimesInPlace())
    for microbatch in range(2):
        stage.forward(microbatch, torch.zeros(3, 4, requires_grad=True), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(JobError, match=r"train\.loss: the loss changes its input in place, but not always"):
        stage.forward(2, torch.zeros(3, 4, requires_grad=True), torch.zeros(3, dtype=torch.int64))


def test_with_activation_checkpointing_the_next_layer_is_given_a_copy() -> None:
    job = job_of("after_sigmoid")
    job = job.model_copy(update={"train": job.train.model_copy(update={"activation_checkpointing": True})})
    check_job(job)
    plain = run_plain(job).sha256
    for cuts in ((), (1,), (2,), (1, 2, 3)):
        assert train(job, cuts, False) == plain, f"cut at {cuts}"


class Halving(torch.optim.SGD):
    """Writes into the gradients that it is given: where autograd looks, or where not even the version is counted."""

    def __init__(self, params: Any, lr: float, unseen: bool = False, from_step: int = 0) -> None:
        super().__init__(params, lr=lr)
        self.unseen, self.from_step, self.steps = unseen, from_step, 0

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.steps >= self.from_step:
                    (parameter.grad.data if self.unseen else parameter.grad).mul_(0.5)
        self.steps += 1
        return super().step(closure)


def layer_with(**options: Any) -> HeldLayer:
    module = nn.Linear(3, 2)
    return HeldLayer(0, module, Halving(module.parameters(), lr=0.1, **options), CPU)


def gradient() -> Value:
    return Value((("grad.weight", torch.ones(2, 3)), ("grad.bias", torch.full((2,), float("nan")))))


@pytest.mark.parametrize("unseen", [False, True])
def test_a_gradient_that_others_may_still_get_stays_whatever_the_optimizer_writes(unseen: bool) -> None:
    layer, given = layer_with(unseen=unseen), gradient()
    for _ in range(3):
        layer.apply(given, 1.0, 0)
    assert torch.equal(given.tensors[0][1], torch.ones(2, 3))


def test_an_optimizer_that_writes_into_gradients_only_later_is_refused_by_name() -> None:
    layer = layer_with(from_step=2)
    for _ in range(2):
        layer.apply(gradient(), 1.0, 0)
    with pytest.raises(JobError, match="Halving changes the gradients of layer 0 in place"):
        layer.apply(gradient(), 1.0, 0)


class Shift(nn.Module):
    """Adds a parameter by views alone: its first gradient is the memory of its output's, and of its input's."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.unsqueeze(0)


def shifts() -> list[nn.Module]:
    return [nn.Linear(8, 8), Shift(), nn.Linear(8, 8), Shift(), Shift(), nn.Linear(8, 4)]


@pytest.mark.parametrize("splits", [False, True])
def test_a_gradient_that_is_the_memory_of_a_parameters_is_not_added_to(splits: bool) -> None:
    """It was sent, and an heir may need it again. Two tables that share it would each get what the other one gets."""
    job = job_of_parts(__name__, "shifts", "of_floats", microbatch=1)
    plain = run_plain(job).sha256
    for count in (1, 2, 5):
        for cuts in combinations(range(1, 6), count):
            assert train(job, cuts, splits) == plain, f"cut at {cuts}"


def test_parameters_whose_gradients_share_memory_each_get_their_own() -> None:
    one, other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    for _ in range(3):
        fresh = [parameter for parameter in (one, other) if parameter.grad is None]
        torch.autograd.backward(torch.ones(1, 3) + one.unsqueeze(0) + other.unsqueeze(0), torch.ones(1, 3))
        own_gradients(fresh)
    assert one.grad is not None
    assert other.grad is not None
    assert one.grad.tolist() == other.grad.tolist() == [3.0, 3.0, 3.0]

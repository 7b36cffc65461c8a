"""What a layer or the loss could not do again on another node is refused by name before the run."""

import functools
import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from tests.hostile.habits import CLASSES, LEFT, REFUSED, WIDTH, Inner, Recomputed, Tokens, head, numbers
from tests.hostile.job_files import make_job
from tests.hostile.late_readers import LATE, late
from tests.hostile.stages import job_of_parts, train

HABITS = "tests.hostile.habits"


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_again_is_refused_before_the_run(name: str) -> None:
    LEFT.clear()
    with pytest.raises(JobError, match=REFUSED[name][1]) as error:
        check_job(make_job(layers=f"{HABITS}:refused", dataset=f"{HABITS}:numbers", args=f'name = "{name}"'))
    assert str(error.value).startswith("model.layers: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", LATE)
def test_a_backward_that_reads_what_a_later_forward_left_is_refused(name: str) -> None:
    """It was wrong and silent: in a pipeline forwards run ahead of a microbatch's backward."""
    with pytest.raises(JobError, match=LATE[name][1]):
        check_job(make_job(layers=f"{late.__module__}:late", dataset=f"{HABITS}:numbers", args=f'name = "{name}"'))


# ---- what is honest --------------------------------------------------------------------------------------------------


class Rotary(Inner):
    """Turns its input by angles that it keeps, for as long an input as it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.angles = torch.zeros(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.length:
            self.length = len(x)
            self.angles = torch.arange(self.length).float()[:, None] / WIDTH
        return self.plain(x) * self.angles[: len(x)].cos()


class Shown(Inner):
    """Keeps what it did last, to be looked at."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.plain(x)
        self.last_mean = float(self.last.detach().mean())
        return self.last


class Hooked(Inner):
    """Halves a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.plain(x)
        y.register_hook(lambda gradient: gradient / 2)  # type: ignore[no-untyped-call]
        return y


class Rebound(Inner):
    """Puts a new tensor in its buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean: torch.Tensor = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.plain(x) - self.mean


class Handed(Inner):
    """Hands on a buffer that each forward changes: on a node a forward has one of its own."""

    sums: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        self.sums.add_(x.detach().sum(0))
        return self.plain(x), self.sums


class Scaled(nn.Module):
    def forward(self, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return given[0] * given[1].cos()


def old_weight_norm() -> nn.Module:
    return nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))


def old_spectral_norm() -> nn.Module:
    return nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(WIDTH, WIDTH, dropout=0.1, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.flatten_parameters()
        y: torch.Tensor = self.inner(x)[0]
        return y


class Routed(nn.Module):
    """Attention, then one of two ways for each sample. x: [B, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1)
        self.ways = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x)[0]
        where = x.sum(1, keepdim=True) > 0
        return torch.where(where, self.ways[0](x), self.ways[1](x))


HONEST: list[Any] = [
    *[Tokens, Rotary, Shown, Hooked, Rebound, Handed, Scaled, old_weight_norm, old_spectral_norm, Recurrent, Routed],
    *[functools.partial(Recomputed, True), functools.partial(Recomputed, True, True)],
    *[functools.partial(nn.BatchNorm1d, WIDTH), functools.partial(nn.Dropout, 0.3), nn.RReLU],
]


def honest() -> list[Any]:
    return [*HONEST, head]


@pytest.mark.parametrize("cuts", [(), (4, 9, 11)], ids=["one stage", "four stages"])
def test_honest_layers_pass_and_train_as_in_a_plain_loop(cuts: tuple[int, ...]) -> None:
    job = job_of_parts(__name__, "honest", numbers.__name__)
    check_job(job)
    assert train(job, cuts, False) == run_plain(job).sha256


# ---- backwards in two halves -----------------------------------------------------------------------------------------


def recomputed(reentrant: bool) -> list[Any]:
    return [Tokens, functools.partial(Recomputed, True, reentrant), head]


def split_job(layers: str, **options: str) -> Job:
    return make_job(layers=f"{__name__}:{layers}", dataset=f"{HABITS}:numbers", more='schedule = "zb-h1"', **options)


def test_what_no_half_of_a_backward_can_run_again_is_refused() -> None:
    """torch raised at the first backward of a stage that splits."""
    check_job(split_job("recomputed", args="reentrant = false"))
    with pytest.raises(
        JobError, match=r"backward of layer 1 \(Recomputed\) .*; call checkpoint\(use_reentrant=False\), or set"
    ):
        check_job(split_job("recomputed", args="reentrant = true"))


def test_a_split_backward_is_no_other_one() -> None:
    check_job(split_job("honest_split"))


def honest_split() -> list[Any]:
    return [layer for layer in honest() if getattr(layer, "args", ()) != (True, True)]


# ---- the loss --------------------------------------------------------------------------------------------------------

CALLS = itertools.count(1)


def warming_up(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target) / next(CALLS)


def noisy_backward(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(output, target)
    loss.register_hook(lambda gradient: gradient * random.random())  # type: ignore[no-untyped-call]
    return loss


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return F.cross_entropy(output, target)


class Remembering(nn.Module):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.norm = output.detach().norm()
        loss = F.cross_entropy(output, target)
        loss.register_hook(lambda gradient: gradient / self.norm)  # type: ignore[no-untyped-call]
        return loss


def writing(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Writes into what it is given."""
    return F.cross_entropy(output.mul_(2.0), target.add_(1).remainder_(CLASSES))


counting, remembering, smooth = Counting(), Remembering(), nn.CrossEntropyLoss(label_smoothing=0.1)


LOSSES = {
    "warming_up": r"the loss gives another value",
    "noisy_backward": r"the backward of the loss draws random numbers from Python's",
    "remembering": r"the loss gives another gradient of the output once a later forward has run",
    "counting": r"the loss keeps calls as a plain attribute",
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_cannot_be_taken_again_is_refused(name: str) -> None:
    with pytest.raises(JobError, match=LOSSES[name]) as error:
        check_job(make_job(loss=f"{__name__}:{name}"))
    assert str(error.value).startswith("train.loss: ")


@pytest.mark.parametrize("name", ["smooth", "writing"])
def test_a_loss_that_can_is_taken(name: str) -> None:
    check_job(make_job(loss=f"{__name__}:{name}"))

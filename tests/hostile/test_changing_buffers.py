"""Buffers that forwards change, and backwards need: a graph has the values of its own forward, wherever the cut is."""

import functools
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.tree import Block
from culm.pipeline.user_code.check import check_job
from culm.stage_server.compute.changing import LARGE
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.stage import Stage
from tests.hostile.job_files import make_job
from tests.hostile.stages import job_of_parts, train


class Scaled(nn.Module):
    """Multiplies by a mean of all inputs so far. ``unseen``: it writes where torch counts no version."""

    def __init__(self, unseen: bool = False, late: int = 0) -> None:
        super().__init__()
        self.unseen, self.late, self.seen = unseen, late, 0
        self.register_buffer("mean", torch.ones(8))
        self.register_buffer("mask", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.get_buffer("mean")
        self.seen = min(self.seen + 1, self.late + 1)
        if self.seen > self.late:
            with torch.no_grad():
                (mean.data if self.unseen else mean).mul_(0.9).add_(x.abs().mean(0), alpha=0.1)
        return x * mean * self.get_buffer("mask")


class Counted(nn.Module):
    """Changes one buffer at every fifth forward, which another one counts. ``unseen``: as in Scaled."""

    def __init__(self, unseen: bool = False) -> None:
        super().__init__()
        self.unseen = unseen
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("codes", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, codes = self.get_buffer("count"), self.get_buffer("codes")
        count += 1
        if count % 5 == 0:
            with torch.no_grad():
                (codes.data if self.unseen else codes).mul_(0.5).add_(x.abs().mean(0))
        return x * codes


class Returned(nn.Module):
    """Gives its buffer as its output, and has its input for another one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 8))
        self.register_buffer("past", torch.zeros(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.get_buffer("mean").mul_(0.9).add_(x.detach() + self.past, alpha=0.1)
        self.past: torch.Tensor = x.detach()
        return mean


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.get_buffer("mask")


class Named(Scaled):
    """Has another name for its buffer as well: an attribute, a list, or a closure. It writes there, or reads."""

    def __init__(self, kept: str, writes: bool) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        first, self.writes = self.get_buffer("count")[:1], writes
        self.first: Any = {"attribute": first, "list": [first], "closure": lambda: first}[kept]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first[0] if isinstance(self.first, list) else self.first() if callable(self.first) else self.first
        if not self.writes:
            x = x * (1.0 + first)
        (first if self.writes else self.get_buffer("count")).add_(1.0)
        return super().forward(x)


class Carried(nn.Module):
    """Its buffer lies in the memory of what it gave last."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 8)
        self.register_buffer("last", torch.zeros(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.cell(x, self.last)
        self.last: torch.Tensor = y.detach()
        return y


class Early(Scaled):
    """Writes after it has read: plain PyTorch refuses the backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.get_buffer("mean")
        self.get_buffer("mean").mul_(0.9)
        return y


def written() -> list[nn.Module]:
    return [nn.Linear(8, 8), Scaled(), nn.Linear(8, 8), Scaled(), nn.BatchNorm1d(8), nn.Linear(8, 4)]


def unseen() -> list[nn.Module]:
    return [nn.Linear(8, 8), Scaled(unseen=True), nn.Linear(8, 8), Scaled(unseen=True), nn.Linear(8, 4)]


def early() -> list[nn.Module]:
    return [nn.Linear(8, 8), Early(), nn.Linear(8, 4)]


def counted() -> list[nn.Module]:
    return [nn.Linear(8, 8), Counted(), nn.Linear(8, 8), Counted(unseen=True), nn.Linear(8, 4)]


def returned() -> list[nn.Module]:
    return [nn.Flatten(), Returned(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)]


def carried() -> list[nn.Module]:
    return [nn.Linear(8, 8), Carried(), nn.Linear(8, 8), Carried(), nn.Linear(8, 4)]


def overwritten(by: str) -> list[nn.Module]:
    """``by``: a layer after it, through a view, or the loss."""
    between: dict[str, list[nn.Module]] = {
        "layer": [nn.ReLU(inplace=True)],
        "view": [nn.Flatten(), nn.ReLU(inplace=True)],
        "loss": [],
    }
    return [nn.Linear(8, 8), Carried(), *between[by]]


def doubling(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.mul_(2.0), target)


def named(kept: str, writes: bool) -> list[Any]:
    return [nn.Linear(8, 8), functools.partial(Named, kept, writes), nn.Linear(8, 4)]


def late() -> list[nn.Module]:
    return [nn.Linear(8, 8), Scaled(unseen=True, late=4), nn.Linear(8, 4)]


class Repeated(nn.Module):
    """Runs its forward again within the backward."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return y


def repeated() -> list[nn.Module]:
    return [nn.Linear(8, 8), Repeated(nn.Linear(8, 8), nn.BatchNorm1d(8)), nn.Linear(8, 4)]


def repeated_alike() -> list[nn.Module]:
    """Dropout draws the same again, and a mask stays."""
    return [nn.Linear(8, 8), Repeated(nn.Linear(8, 8), nn.Dropout(0.3), Constant(), nn.LayerNorm(8)), nn.Linear(8, 4)]


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(30, 8, generator=generator), torch.randint(0, 4, (30,), generator=generator))


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "in two halves"])
@pytest.mark.parametrize("redundant", [False, True], ids=["calm", "redundant"])
@pytest.mark.parametrize("layers", ["written", "unseen", "counted", "carried", "returned"])
def test_every_cut_gives_the_plain_loops_bits(layers: str, redundant: bool, splits: bool) -> None:
    """Through .data it was wrong and silent; else torch refused the backward, or, if redundant, it was silent too."""
    job = job_of_parts(__name__, layers, "dataset")
    check_job(job)
    plain = run_plain(job).sha256
    inner = range(1, 5)
    for cuts in [(), *combinations(inner, 1), tuple(inner)]:
        assert train(job, cuts, splits, redundant=redundant) == plain, f"cut at {cuts}"


def test_one_that_plain_pytorch_refuses_is_refused_at_the_start() -> None:
    with pytest.raises(JobError, match=r"the backward of layer 1 \(Early\) raised .* modified by an inplace operation"):
        check_job(job_of_parts(__name__, "early", "dataset"))


@pytest.mark.parametrize("writes", [False, True], ids=["read", "written"])
@pytest.mark.parametrize("kept", ["attribute", "list", "closure"])
def test_a_buffer_with_another_name_is_refused(kept: str, writes: bool) -> None:
    """A node exchanges the tensor, and the other name went on with the old one."""
    job = job_of_parts(__name__, "named", "dataset")
    arguments = {"kept": kept, "writes": writes}
    job = job.model_copy(update={"model": job.model.model_copy(update={"args": arguments})})
    with pytest.raises(JobError, match=r"layer 1 \(Named\) keeps its buffer count under another name"):
        check_job(job)


@pytest.mark.parametrize(
    ("by", "name"), [("layer", r"layer 2 \(ReLU\)"), ("view", r"layer 3 \(ReLU\)"), ("loss", "the loss")]
)
def test_a_buffer_that_others_write_into_is_refused(by: str, name: str) -> None:
    """It lies in the memory of its layer's output: whether it saw the writes depended on the cut."""
    loss = f"{__name__}:doubling"
    job = make_job(layers=f"{__name__}:overwritten", dataset=f"{__name__}:dataset", args=f'by = "{by}"', loss=loss)
    job = job.model_copy(update={"data": job.data.model_copy(update={"microbatch": 3})})
    with pytest.raises(
        JobError, match=rf"{name} writes into its input, which the buffer last of layer 1 \(Carried\) keeps"
    ):
        check_job(job)


def test_a_backward_that_changes_buffers_is_refused() -> None:
    """Two microbatches in flight: the statistics took the second forward's numbers before the first one's again."""
    with pytest.raises(JobError, match=r"the backward of layer 1 \(Repeated\) changes its buffers"):
        check_job(job_of_parts(__name__, "repeated", "dataset"))


def test_a_backward_that_only_runs_a_forward_again_is_taken() -> None:
    job = job_of_parts(__name__, "repeated_alike", "dataset")
    check_job(job)
    assert train(job, (1,), False) == run_plain(job).sha256


@pytest.mark.parametrize("pipeline", [0, 1])
def test_one_that_begins_unseen_is_refused_before_the_step_counts(pipeline: int) -> None:
    """It was only logged, and that by the first pipeline alone."""
    held = HeldLayer(1, Scaled(unseen=True, late=1), None, CPU)
    stage = Stage(job_of_parts(__name__, "late", "dataset"), pipeline, [held], True, False, nn.functional.cross_entropy)
    stage.begin_step(0)
    for m in range(2):
        stage.forward(m, torch.full((3, 8), 2.0), None)
    with pytest.raises(
        JobError, match=r"layer 1 \(Scaled\) changes its buffer mean through .data, but did not in its f"
    ):
        held.merge(Block(pipeline, pipeline + 1), 2)


@pytest.mark.parametrize("layer", [Carried, Returned])
def test_what_a_stage_is_given_and_gives_stays_as_it_is(layer: type[nn.Module]) -> None:
    """A step that begins again puts buffers back, and wrote into what the outbox and the mailbox keep."""
    job = job_of_parts(__name__, "carried", "dataset")
    stage = Stage(job, 0, [HeldLayer(0, layer(), None, CPU)], False, False, nn.functional.cross_entropy)
    given = [torch.full((3, 8), float(m)) for m in range(3)]
    stage.begin_step(0)
    gave = [stage.forward(m, x, None).detach() for m, x in enumerate(given)]
    kept = [(x, x.clone()) for x in (*given, *gave)]
    stage.begin_step(0)
    assert all(torch.equal(x, before) for x, before in kept)
    assert all(torch.equal(stage.forward(m, x, None).detach(), gave[m]) for m, x in enumerate(given))


def test_other_buffers_stay_where_they_are() -> None:
    """So they cost nothing: a constant, a cache, the statistics of a BatchNorm, a large mask beside a count."""
    job = job_of_parts(__name__, "written", "dataset")
    modules = [Scaled(), nn.BatchNorm1d(8), Constant(), Counted()]
    modules[-1].register_buffer("mask", torch.ones(LARGE // 4 + 1))
    held = [HeldLayer(i, module, None, CPU) for i, module in enumerate(modules)]
    stage = Stage(job, 0, held, True, False, nn.functional.cross_entropy)
    stage.begin_step(0)
    before = [dict(module.named_buffers()) for module in modules]
    for m in range(3):
        stage.forward(m, torch.ones(3, 8), None)
    after = [dict(module.named_buffers()) for module in modules]
    moved = [name for old, new in zip(before, after, strict=True) for name in old if old[name] is not new[name]]
    assert moved == ["mean", "mask", "count", "codes"]

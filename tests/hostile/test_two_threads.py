"""With several threads on the CPU the same work gives the same bits."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.devices import device_of
from culm.stage_server.last_words import reason_of
from tests.hostile.job_files import make_job
from tests.hostile.jobs import CLASSES, WIDTH
from tests.hostile.models import Wrapped

INDEXED = 60_000  # so many that torch gives each thread a part


def job_of(threads: int, layers: str = "unpooled") -> Job:
    return make_job(layers=f"{__name__}:{layers}", job=f"threads = {threads}")


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """What ``device_of`` sets is the whole process's."""
    deterministic: Any = torch.utils.deterministic
    threads, fills = torch.get_num_threads(), deterministic.fill_uninitialized_memory
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    deterministic.fill_uninitialized_memory = fills


def gradient(threads: int) -> torch.Tensor:
    """Of a small table, into which an index's backward adds many rows each."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 7, (INDEXED,), generator=generator)
    weights = torch.randn(INDEXED, generator=generator)
    torch.set_num_threads(threads)
    table = torch.zeros(7, requires_grad=True)
    (table[rows] * weights).sum().backward()  # type: ignore[no-untyped-call]
    assert table.grad is not None
    return table.grad


def test_an_indexs_backward_adds_in_one_order() -> None:
    """Its threads added in the order in which they came."""
    alone = gradient(1)
    device_of(job_of(2))
    assert all(torch.equal(gradient(2), alone) for _ in range(20))


def unpooled() -> list[nn.Module]:
    """An operation without an algorithm that torch calls deterministic."""

    def pooled(x: torch.Tensor) -> torch.Tensor:
        halves, where = nn.functional.max_pool2d(x.reshape(-1, 1, 2, 4), 2, return_indices=True)
        return nn.functional.max_unpool2d(halves, where, [2, 2]).flatten(1)

    return [nn.Linear(WIDTH, WIDTH), Wrapped(pooled), nn.Linear(WIDTH, CLASSES)]


def test_an_operation_whose_bits_may_vary_is_refused_with_several_threads_alone() -> None:
    check_job(job_of(1))
    with pytest.raises(JobError, match=r"layer 1 \(Wrapped\) raised .*max_unpool.* job.threads = 1"):
        check_job(job_of(2))


def test_a_node_says_what_to_do_and_not_to_let_bits_vary() -> None:
    """torch advises to turn determinism off."""
    device_of(job_of(2))
    with pytest.raises(RuntimeError) as caught:
        nn.Sequential(*unpooled())(torch.randn(2, WIDTH))
    said = reason_of(caught.value)
    assert re.fullmatch(r"RuntimeError: max_unpool\w+ does not have a deterministic implementation; its bits .*", said)
    assert "warn_only" not in said


def usual() -> list[nn.Module]:
    """Layers whose kernels torch has in a deterministic kind, or no other."""
    rows = Wrapped(lambda x: (x[:, :1] * 0 + torch.arange(8)).long().remainder(5))
    convolved = [nn.ConvTranspose2d(2, 2, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(3), nn.ReflectionPad2d(1)]
    images = nn.Sequential(nn.Unflatten(1, (2, 4, 4)), *convolved, nn.Upsample(scale_factor=2, mode="bilinear"))
    gathered = Wrapped(lambda x: torch.zeros(len(x), 200).index_add(1, torch.arange(200) % 9, x.flatten(1)))
    added = Wrapped(
        lambda x: x.cumsum(1).scatter_add(1, torch.zeros(len(x), 200).long(), x).flip(1)[:, torch.arange(8)]
    )
    attention = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    return [rows, nn.Embedding(5, 4), nn.Flatten(), images, nn.Flatten(), gathered, added, attention, nn.Flatten()]


def test_usual_layers_are_taken_with_several_threads() -> None:
    check_job(job_of(2, "usual"))

"""Layers whose outputs do not lie in order in memory give the plain loop's bits wherever the model is cut."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline.checkpoints.layer_file import read_layer, write_layer
from culm.pipeline.checkpoints.manifest import Manifest
from culm.pipeline.errors import JobError
from culm.pipeline.tensors.as_sent import between_layers
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, chunks, header_of
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from tests.hostile.models import Wrapped
from tests.hostile.stages import as_it_is, job_of_parts, train
from tests.late_device import Late


class Last(nn.Conv2d):
    """Gives its output in channels_last, which all layers after it keep."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(memory_format=torch.channels_last))


def images() -> list[nn.Module]:
    head = [Last(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8)]
    return [*head, nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 6, 1), nn.Flatten(), nn.Linear(6, 4)]


def of_images() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(30, 3, 7, 7, generator=generator), _classes(generator))


def sequences() -> list[nn.Module]:
    """Transposed, averaged over time, one position of many, and one for all."""
    return [
        nn.Linear(20, 24),
        Wrapped(lambda x: x.transpose(1, 2)),
        Wrapped(lambda x: x - x.mean(1, keepdim=True)),
        nn.Linear(17, 19),
        Wrapped(lambda x: x.transpose(1, 2)[:, 3:9:2]),
        Wrapped(lambda x: x * x.sum(2, keepdim=True)),
        Wrapped(lambda x: x.mean(1, keepdim=True).expand(-1, 5, -1)),
        nn.Linear(24, 16),
        Wrapped(lambda x: x.mean(1)),
        nn.Linear(16, 4),
    ]


def of_sequences() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(30, 17, 20, generator=generator), _classes(generator))


def _classes(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 4, (30,), generator=generator)


def by_the_wire(tensor: torch.Tensor) -> torch.Tensor:
    """As between two nodes."""
    value = Value.single(tensor)
    assembler = Assembler(header_of(value))
    for offset, parts in chunks(value):
        assembler.add(offset, b"".join(parts))
    return assembler.value().tensors[0][1]


def by_a_device(tensor: torch.Tensor) -> torch.Tensor:
    """As between two stages of one node on a card."""
    device = Late()
    home = device.home(tensor)
    device.copied().wait()
    return device.here(home)


@pytest.mark.parametrize("passed", [as_it_is, by_the_wire, by_a_device])
@pytest.mark.parametrize(
    ("layers", "splits"),
    # torch's backward of a GroupNorm in channels_last crashes if only its parameters' gradients are wanted.
    [("images", False), ("sequences", False), ("sequences", True)],
    ids=["images", "sequences", "sequences in two halves"],
)
def test_every_cut_gives_the_plain_loops_bits(layers: str, passed: Any, splits: bool) -> None:
    job = job_of_parts(__name__, layers, f"of_{layers}")
    plain = run_plain(job).sha256
    inner = range(1, ModelSource(job).layer_count)
    for cuts in [*combinations(inner, 1), *combinations(inner, 2), tuple(inner)]:
        assert train(job, cuts, splits, passed) == plain, f"cut at {cuts}"


def written() -> list[nn.Module]:
    """Views that skip elements are written into: one that begins elsewhere is copied in any case, the other at cuts."""
    return [
        nn.Linear(8, 17),
        Wrapped(lambda x: x[:, 1:]),
        nn.ReLU(inplace=True),
        nn.Linear(16, 16),
        Wrapped(lambda x: x[:, ::2]),
        nn.ReLU(inplace=True),
        nn.Linear(8, 4),
    ]


def of_rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(30, 8, generator=generator), _classes(generator))


@pytest.mark.parametrize("splits", [False, True])
def test_a_layer_may_write_into_a_view_that_is_copied(splits: bool) -> None:
    """autograd refuses it where a Function has given a view."""
    job = job_of_parts(__name__, "written", "of_rows")
    check_job(job)
    plain = run_plain(job).sha256
    for cuts in [(), *combinations(range(1, 7), 1), (2, 5)]:
        assert train(job, cuts, splits) == plain, f"cut at {cuts}"


def test_the_gradient_of_a_view_that_is_written_lies_as_where_a_cut_is() -> None:
    """autograd laid it out like the memory behind the view, and kernels add up in the order of memory."""
    found: list[tuple[int, ...]] = []
    for is_cut in (False, True):
        x = torch.randn(3, 4, 5, requires_grad=True) * 1.0
        x.register_hook(lambda gradient: found.append(gradient.stride()))  # type: ignore[no-untyped-call]
        y = between_layers(x.movedim(-1, 0))
        received = y.detach().requires_grad_()
        written = nn.functional.elu_(copy_of(received) if is_cut else y)
        if is_cut:
            torch.autograd.backward(y, torch.autograd.grad(written, received, torch.ones(5, 3, 4)))
        else:
            torch.autograd.backward(written, torch.ones(5, 3, 4))
    assert found[0] == found[1]


class Half(nn.Module):
    """Gives a view that was made without a graph, into which autograd lets nobody write."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x.chunk(2, 1)[0]


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(self.weight)


def written_without_graph() -> list[nn.Module]:
    return [Half(), Scales(), nn.Linear(4, 4)]


def test_a_view_without_a_graph_may_be_written_as_where_a_cut_is() -> None:
    job = job_of_parts(__name__, "written_without_graph", "of_rows")
    check_job(job)
    plain = run_plain(job).sha256
    for cuts in ((), (1,), (2,), (1, 2)):
        assert train(job, cuts, False) == plain, f"cut at {cuts}"


class Uses(nn.Module):
    """Hands its input on beside what it makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x), x


class Halves(nn.Module):
    """Halves the gradient of what it is given: of its own use alone, where that is a view."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own = own

    def forward(self, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        made, x = given
        x = x.view_as(x) if self.own else x
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
        return made + x


def hooked(own: bool) -> list[nn.Module]:
    return [nn.Linear(8, 8), Uses(), Halves(own), nn.Linear(8, 4)]


def hooked_itself() -> list[nn.Module]:
    return hooked(own=False)


def hooked_view() -> list[nn.Module]:
    return hooked(own=True)


def test_a_hook_on_what_a_layer_before_uses_too_is_refused_but_on_a_view_of_it() -> None:
    """It saw the gradient of both uses, and where a cut lay between them of one."""
    with pytest.raises(
        JobError, match=r"layer 2 \(Halves\) registers a hook on its input.*; register it on a tensor of"
    ):
        check_job(job_of_parts(__name__, "hooked_itself", "of_rows"))
    job = job_of_parts(__name__, "hooked_view", "of_rows")
    check_job(job)
    plain = run_plain(job).sha256
    for cuts in combinations(range(1, 4), 1):
        assert train(job, cuts, False) == plain, f"cut at {cuts}"


class Cleared(nn.Module):
    """Gives a view of memory that is written by way of another view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * 1.0).view(len(x), 2, -1)
        y[:, 0] = 0.0
        return y


def cleared() -> list[nn.Module]:
    return [nn.Linear(8, 8), Cleared(), nn.Linear(4, 4), nn.Flatten(), nn.Linear(8, 4)]


@pytest.mark.parametrize("splits", [False, True])
def test_a_layer_may_give_a_view_whose_memory_it_has_written_by_another_one(splits: bool) -> None:
    """The process crashed."""
    job = job_of_parts(__name__, "cleared", "of_rows")
    check_job(job)
    plain = run_plain(job).sha256
    for cuts in [(), *combinations(range(1, 5), 1)]:
        assert train(job, cuts, splits) == plain, f"cut at {cuts}"


def unfolded() -> list[nn.Module]:
    head = [nn.Linear(8, 16), Wrapped(lambda x: x.unfold(1, 2, 1)), nn.Hardswish(inplace=True)]
    return [*head, nn.Flatten(), nn.Linear(30, 4)]


def test_a_layer_that_writes_into_elements_that_are_one_is_refused() -> None:
    """Cut before it, the gradients of these had other bits."""
    with pytest.raises(JobError, match=r"Hardswish\) writes into its input, in which several elements are one"):
        check_job(job_of_parts(__name__, "unfolded", "of_rows"))


def expanded() -> list[nn.Module]:
    """The last layer but one takes no expanded tensor, and is given one."""
    head = [nn.Linear(8, 1), Wrapped(lambda x: x.expand(-1, 6)), Wrapped(lambda x: x.view(-1))]
    return [*head, nn.Unflatten(0, (-1, 6)), nn.Linear(6, 4)]


def test_a_layer_is_tried_on_an_input_that_lies_in_memory_as_in_training() -> None:
    job = job_of_parts(__name__, "expanded", "of_rows")
    with pytest.raises(JobError, match=r"layer 2 \(Wrapped\) raised RuntimeError: view size is not compatible"):
        check_job(job)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(2, 3, 4),
        torch.arange(24.0).reshape(2, 3, 4).transpose(1, 2),
        torch.arange(24.0).reshape(2, 3, 4)[:, 1],
        torch.arange(24.0).reshape(2, 3, 4)[:, ::2, 1:3],
        torch.arange(4.0).expand(3, 4),
        torch.arange(8.0).reshape(2, 1, 4).transpose(1, 2).expand(2, 4, 5),
        torch.ones((), dtype=torch.bfloat16).expand(1, 1),
        torch.arange(8.0).unfold(0, 3, 1),
        torch.arange(12.0).reshape(2, 6, 1, 1).to(memory_format=torch.channels_last),
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0, 3).t(),
        torch.tensor(1.0),
    ],
    ids=lambda tensor: f"{list(tensor.shape)} {tensor.stride()}",
)
def test_what_is_sent_arrives_with_its_strides(tensor: torch.Tensor) -> None:
    found = by_the_wire(tensor)
    assert torch.equal(found, tensor)
    if tensor.numel():
        assert found.stride() == tensor.stride()


def test_a_checkpoint_keeps_the_strides_of_an_optimizers_state(tmp_path: Path) -> None:
    """Its products would have other bits after a rollback. Two holders write the same bytes."""
    images = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    state = Value((("parameter.weight", images), ("optimizer.0.momentum", torch.randn(3, 4).T)))
    folder = f"{tmp_path}/step-00000010"
    files, again = (write_layer(folder, 0, state) for _ in range(2))
    assert files == again
    read = read_layer(folder, Manifest(job="job", step=10, fingerprint="", loss=0.0, files={0: files}), 0)
    for (name, tensor), (_, there) in zip(read.tensors, state.tensors, strict=True):
        assert torch.equal(tensor, there), name
        assert tensor.stride() == there.stride(), name

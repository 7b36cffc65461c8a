"""A layer's state read from live memory: of one version, whatever happens meanwhile."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from culm.pipeline.checkpoints.layer_file import read_layer, write_layer
from culm.pipeline.checkpoints.manifest import Manifest
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, chunks, header_of
from culm.pipeline.tree import Block
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.loan import Loan

CHUNK = 100


def trained() -> HeldLayer:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    held = HeldLayer(0, module, torch.optim.AdamW(module.parameters(), lr=0.1), CPU)
    step(held)
    return held


def step(held: HeldLayer) -> None:
    held.begin_step(0)
    held.module(torch.randn(8, 5)).sum().backward()
    ((_, gradient),) = held.merge(Block(0, 1), 1)
    held.apply(gradient, 1.0, 0)


def read(loan: Loan, meanwhile: dict[int, partial[None]]) -> Value:
    """The whole loan, calling something between its pieces."""
    assembler = Assembler(header_of(loan.value))
    for i, (offset, payload) in enumerate(loan.chunks(CHUNK)):
        assembler.add(offset, payload)
        if i in meanwhile:
            meanwhile[i]()
    return assembler.value()


def same(one: Value, other: Value) -> bool:
    return all(
        a == b and torch.equal(x, y) and x.dtype == y.dtype
        for (a, x), (b, y) in zip(one.tensors, other.tensors, strict=True)
    )


def test_state_is_read_from_where_it_is() -> None:
    held = trained()
    weight = next(held.module.parameters())
    loan = held.lend()
    assert loan.value.tensors[0][1].data_ptr() == weight.data_ptr()
    assert loan.live
    assert same(read(loan, {}), held.export())
    assert not loan.live


@pytest.mark.parametrize("at", [0, 1, 7, 20])
def test_a_commit_that_overtakes_a_loan_does_not_change_it(at: int) -> None:
    held = trained()
    before = held.export()
    loan = held.lend()
    number = sum(1 for _ in chunks(before, CHUNK))
    assert number > 21
    assert same(read(loan, {at: partial(step, held), at + 1: partial(step, held)}), before)
    assert not same(held.export(), before)


def test_two_loans_of_different_versions_at_once() -> None:
    held = trained()
    first, early = held.export(), held.lend()
    step(held)
    second, late = held.export(), held.lend()
    step(held)
    assert same(read(late, {3: partial(step, held)}), second)
    assert same(read(early, {}), first)


def test_forwards_of_a_running_step_do_not_show() -> None:
    held = trained()
    before = held.export()
    loan = held.lend()

    def forward() -> None:
        held.begin_step(0)
        held.module(torch.randn(8, 5))

    assert same(read(loan, {2: partial(forward)}), before)
    assert same(read(held.lend(), {}), before)


def test_a_state_installed_over_a_loan_does_not_change_it() -> None:
    held, other = trained(), trained()
    step(other)
    before = held.export()
    assert same(read(held.lend(), {1: partial(held.install, other.export())}), before)
    assert same(held.export(), other.export())


def test_a_commit_while_a_checkpoint_is_written_does_not_change_it(tmp_path: Path) -> None:
    """Nor does one between two attempts, of which the second begins with bytes that the first has read."""
    held = trained()
    before, loan = held.export(), held.lend()
    reads = 0

    def read(place: int, start: int, end: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads in (2, 7):
            step(held)
        return loan.read(place, start, end)

    for _ in range(2):
        files = {0: write_layer(str(tmp_path), 0, loan.value, None, read)}
        manifest = Manifest(job="job", step=1, fingerprint="code", loss=0.0, files=files)
        assert same(read_layer(str(tmp_path), manifest, 0), before)
    assert reads == 2 * len(before.tensors)
    assert not loan.live  # what was lent has changed
    assert not same(held.export(), before)


def test_a_loan_that_nobody_reads_to_its_end_is_over() -> None:
    loan = trained().lend()
    for _ in loan.chunks(CHUNK):
        break
    assert not loan.live


def test_what_is_not_contiguous_is_sent_in_order() -> None:
    value = Value((("parameter.a", torch.arange(60.0).reshape(6, 10).T), ("parameter.b", torch.empty(0))))
    assert same(read(Loan(value), {}), value)

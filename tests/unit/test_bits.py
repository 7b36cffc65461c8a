"""Tensors are compared bit for bit."""

import pytest
import torch
from torch import nn

from culm.pipeline.tensors.bits import checksum, digest_of, same_bits
from culm.pipeline.tree import Block
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer

NAN, WIDE = float("nan"), torch.complex128
PAIRS = {
    "the same": (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), True),
    "zeros": (torch.tensor([0.0]), torch.tensor([-0.0]), False),
    "half zeros": (torch.tensor([0.0]).half(), torch.tensor([-0.0]).half(), False),
    "complex zeros": (torch.tensor([0j]), torch.tensor([complex(0.0, -0.0)]), False),
    "wide complex zeros": (torch.zeros(1, dtype=WIDE), torch.tensor([complex(0.0, -0.0)], dtype=WIDE), False),
    "a lazy conjugate": (torch.tensor([1 + 1j]).conj(), torch.tensor([1 - 1j]), True),
    "NaNs": (torch.tensor([NAN]), torch.tensor([NAN]), True),
    "numbers of two dtypes": (torch.tensor([1]), torch.tensor([1.0]), False),
    "truth": (torch.tensor([True]), torch.tensor([False]), False),
    "shapes": (torch.zeros(2), torch.zeros(1, 2), False),
    "strides": (torch.ones(2, 3), torch.ones(3, 2).t(), True),
    "nothing": (torch.zeros(0), torch.zeros(0), True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_bits_are_compared(name: str) -> None:
    one, other, same = PAIRS[name]
    assert same_bits(one, other) is same
    assert (digest_of(one) == digest_of(other)) is same
    if one.shape == other.shape and one.dtype == other.dtype and one.numel():
        assert bool(checksum(one) == checksum(other)) is same


class Sign(nn.Module):
    """Keeps a buffer whose sign alone changes. x: [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("zero").neg_()
        return x


def test_a_buffer_that_changes_its_sign_alone_goes_to_every_holder() -> None:
    """It counted as unchanged: the owner kept -0.0, its standby 0.0."""
    owner, standby = (HeldLayer(0, Sign(), None, CPU) for _ in range(2))
    owner.begin_step(0)
    owner.changing.begin_forward()
    owner.changing.end_forward(owner.module(torch.ones(1, 2)))
    assert owner.has_changed_buffers()
    ((_, gradient),) = owner.merge(Block(0, 1), 1)
    for layer in (owner, standby):
        layer.apply(gradient, 1.0, 0)
    assert owner.digest() == standby.digest()
    assert torch.signbit(standby.module.get_buffer("zero")).all()

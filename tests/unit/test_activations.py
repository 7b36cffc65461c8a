"""What an activation tells of its tensors: which of them wait for a gradient."""

import pytest
import torch

from culm.pipeline.tensors.pytrees import Pytree
from culm.pipeline.tensors.values import Value


@pytest.mark.parametrize("inside", [lambda tensor: tensor, lambda tensor: {"of": tensor}], ids=["alone", "within"])
def test_a_target_is_a_constant_whatever_the_dataset_gives(inside: Pytree) -> None:
    made = torch.ones(2, requires_grad=True) * 2
    value = Value.activation(made, inside(made))
    assert [name for name, _ in value.tensors] == ["output.0", "constant.1"]
    assert not any(tensor.requires_grad for _, tensor in value.tensors), "no graph goes with it"
    output, target = value.output_and_target()
    assert output.requires_grad
    assert not (target if isinstance(target, torch.Tensor) else target["of"]).requires_grad

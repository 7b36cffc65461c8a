"""What a tensor worker answers is looked at before anybody counts on it."""

import pytest
import torch

from culm.pipeline.user_code.graph.tasks import Task
from culm.stage_server.tensor_work.desk import misfit

X = torch.ones(3, 4)
FORWARD = Task(layer=0, function="apply_vertex", seed=1, wanted=(True,), arguments=(X,))
BACKWARD = Task(layer=0, function="apply_vertex", seed=1, wanted=(True,), arguments=(X,), gradient=torch.ones(3, 2))
SHAPES = [X.shape, torch.Size([2, 4])]  # of the argument, and of the layer's one parameter


@pytest.mark.parametrize(
    "answer",
    [{}, {1: X}, {0: X, 1: X}, {0: torch.ones(2, 4)}, {0: torch.ones(())}, {0: X.double()}, {0: X.long()}],
)
def test_a_forward_gives_one_tensor_with_a_row_for_each_of_its_own(answer: dict[int, torch.Tensor]) -> None:
    assert "answers a forward" in misfit(FORWARD, SHAPES, answer)


@pytest.mark.parametrize("answer", [{2: X}, {-1: X}, {0: torch.ones(4, 3)}, {1: X}, {0: X.double()}])
def test_a_backward_gives_gradients_of_what_there_is(answer: dict[int, torch.Tensor]) -> None:
    assert "gradient of place" in misfit(BACKWARD, SHAPES, answer)


def test_what_fits_is_taken() -> None:
    assert misfit(FORWARD, SHAPES, {0: torch.ones(3, 2)}) == ""
    assert misfit(BACKWARD, SHAPES, {0: X, 1: torch.ones(2, 4)}) == ""
    assert misfit(BACKWARD, SHAPES, {}) == "", "nothing has a gradient"

"""One step of a layer's optimizer, and whether optimizers change the gradients that they are given."""

from collections.abc import Sequence

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.tensors.bits import same_bits


class Stepping:
    """Of one layer."""

    def __init__(self, index: int) -> None:
        self._index = index
        # Whether the optimizer writes into gradients; None before its first step has shown it.
        self.writes_gradients: bool | None = None

    def step(self, optimizer: torch.optim.Optimizer, given: Sequence[torch.Tensor]) -> None:
        """``given``: the gradients that are in place. Raises JobError where they change, and did not at first."""
        versions = [grad._version for grad in given]
        before = [grad.clone() for grad in given] if self.writes_gradients is None else []
        optimizer.step()
        wrote = [grad._version for grad in given] != versions
        if self.writes_gradients is None and given:  # writes through .data count no version
            self.writes_gradients = wrote or not all(map(same_bits, before, given))
        elif wrote and self.writes_gradients is False:
            name = type(optimizer).__name__
            what = f"{name} changes the gradients of layer {self._index} in place, but did not at its first step"
            raise JobError(what, "train.optimizer", "take one that leaves gradients as they are")

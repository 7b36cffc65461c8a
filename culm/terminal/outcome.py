"""The outcome of a run. Imports no torch, so that the modules that show it need none either."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

DONE = "every step is committed"  # what a display says of a run that is done

LayerState = tuple[int, "dict[str, torch.Tensor]"]  # (index, state dict)


@dataclass(kw_only=True)
class Outcome:
    """The outcome of a run. ``losses`` by step from ``first_step`` on. The names are those of ``culm run --json``.

    ``stopped_early``: why it ended before its job's last step, in words; empty: it did not. ``metrics``: by step and
    name. ``evaluations``: loss and metrics, by name, of the weights after so many steps.
    """

    losses: list[float] = field(default_factory=list)
    first_step: int = 0  # more than 0 where the run went on from a checkpoint
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    losses_of_nodes: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    layers: list[LayerState] = field(default_factory=list)
    sha256: str = ""
    stopped_early: str = ""
    checkpoint: str = ""  # the folder of the newest whole one that the run has written
    checkpoint_fault: str = ""  # why the last checkpoint is not whole

    @property
    def weights(self) -> "dict[str, torch.Tensor]":
        """The final weights, as ``torch.nn.Sequential(*layers).load_state_dict`` takes them."""
        return {f"{index}.{name}": tensor for index, state in self.layers for name, tensor in state.items()}

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": self.first_step + len(self.losses),
            "first_step": self.first_step,
            "stopped_early": self.stopped_early,
            "losses": [*map(_finite, self.losses)],
            "loss_hex": [loss.hex() for loss in self.losses],
            "metrics": _rows(self.metrics),
            "evaluations": _rows(self.evaluations),
            "seconds": self.seconds,
            "losses_of_nodes": self.losses_of_nodes,
            "checkpoint": self.checkpoint or None,
            "weights_sha256": self.sha256,
        }


def _rows(by_step: dict[int, dict[str, float]]) -> list[dict[str, float | None]]:
    return [{"step": step, **{name: _finite(x) for name, x in found.items()}} for step, found in by_step.items()]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no NaN


class RunFailed(Exception):
    """The run cannot go on. ``code`` is the exit code of the command."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code

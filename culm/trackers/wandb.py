"""Weights & Biases: a run in a project; with WANDB_MODE=offline in files of this machine alone."""

# W&B's own step only ascends, and an evaluation is known after the next step has begun. So every line has a step of
# its own, STEP, by which W&B draws all the others. A run that was written offline cannot be gone on with: the next
# process writes other files under the same id, which `wandb sync` puts together. So what was written lies in a file
# beside them.

import json
import os
from collections.abc import Sequence
from pathlib import Path

import wandb

from culm.trackers.by_step import by_step
from culm.trackers.scalars import Scalar
from culm.trackers.tracker import TrackedRun

STEP = "trained_steps"


class WeightsAndBiases:
    """``where``: the project."""

    def __init__(self, where: str, run: TrackedRun) -> None:
        folder = Path(os.environ.get("WANDB_DIR") or ".", "wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"culm-{run.id}.json"
        self._newest: dict[str, int] = json.loads(self._file.read_text()) if self._file.exists() else {}
        settings = wandb.Settings(silent=True, console="off")
        self._run = wandb.init(
            project=where, id=run.id, name=run.id, resume="allow", config=dict(run.config), settings=settings
        )
        self._run.define_metric("*", step_metric=STEP)

    def newest(self, name: str) -> int:
        return self._newest.get(name, -1)

    def write(self, scalars: Sequence[Scalar]) -> None:
        for step, numbers in by_step(scalars):
            self._run.log({STEP: step, **numbers})
            self._newest |= dict.fromkeys(numbers, step)
        whole = self._file.with_suffix(".new")
        whole.write_text(json.dumps(self._newest))
        whole.replace(self._file)

    def close(self, done: bool) -> None:
        self._run.finish()

"""A schedule of the optimizer's options, such as its learning rate: a function of the step, the same on every node."""

# torch's schedulers count, and compute each value from the one before. A node that joins at step 1,000 has to have the
# very values that a scheduler has which was there from the beginning. So each node runs the job's scheduler from step 0
# on, over an optimizer of its own with one parameter in each group, and sets what it gives before a layer's step.
#
# It sets the learning rate, and what else the scheduler changes in its first steps, such as a momentum: an optimizer
# may keep numbers of its own beside these. A copy of a layer does not carry what is set before each step anyhow. So a
# run that is resumed under another schedule, or under none, goes on with the options of its own job.

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from culm.pipeline.errors import JobError
from culm.pipeline.user_code.groups import Options
from culm.pipeline.user_code.imports import RAISED, called, described

WHERE = "train.schedule"
LOOKS = 2  # steps that show what a schedule changes
NEWEST = 64  # steps whose values are kept
TRIED = 10**6  # steps that are tried before a run starts: ten seconds


def scheduler_over(function: Callable[..., Any], arguments: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """torch's scheduler over the optimizer. Raises JobError.

    function: a class of schedulers, or a function whose first argument is ``optimizer`` and which returns one; else a
    function of the step that gives the factor of the learning rate. All are called with the arguments, too.
    """
    is_factor = not inspect.isclass(function) and next(iter(_parameters(function)), "") != "optimizer"
    if is_factor:
        try:
            float(function(0, **arguments))
        except RAISED as error:
            what = f"called with step 0 it gives no number: {described(error)}"
            mend = "name a scheduler, a function (optimizer, ...) that returns one, or one of the step"
            raise JobError(what, WHERE, mend) from error
        return LambdaLR(optimizer, partial(_factor, function, arguments))
    made = called(function, {"optimizer": optimizer, **arguments}, WHERE)
    if isinstance(made, ReduceLROnPlateau):
        raise JobError("it waits for a measured value, which a function of the step has not", WHERE, "take another")
    if not isinstance(made, LRScheduler):
        raise JobError(f"it returned a {type(made).__name__}", WHERE, "let it return a torch.optim.lr_scheduler")
    return made


def _factor(function: Callable[..., Any], arguments: dict[str, Any], step: int) -> float:
    return float(function(step, **arguments))


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # written in C
        return []


class Schedule:
    """The options of each group at a step. One thread asks."""

    def __init__(
        self,
        optimizer: Callable[[], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], Any],
        steps: int,
    ) -> None:
        """``optimizer``: makes one with a parameter in each group; ``scheduler``: makes the job's over it. ``steps``:
        of the job. Raises JobError.
        """
        self._make_optimizer, self._make_scheduler, self._steps = optimizer, scheduler, steps
        # By step, of those around the last one: a layer that was seeded follows through them, one by one.
        self._newest: dict[int, list[Options]] = {}
        self._begin()
        while self._step < min(LOOKS, steps - 1):
            self._next()
        # The entries that it sets: a copy of a layer has none of them. Fixed, so that all copies have the same entries.
        self.keys = frozenset(self._changed() | {"lr"})

    def _begin(self) -> None:
        self._optimizer = self._make_optimizer()
        self._first = [{key: group[key] for key in group.keys() - {"params"}} for group in self._optimizer.param_groups]
        self._scheduler = self._make_scheduler(self._optimizer)
        self._step = 0

    def try_all(self) -> None:
        """Every step, as far as there is time: many schedules are made for a number of steps. Raises JobError."""
        self.at(min(self._steps - 1, TRIED))

    def _next(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no optimizer has stepped: this one never does
            try:
                self._scheduler.step()
            except RAISED as error:
                what = f"what follows step {self._step} raised {described(error)}"
                mend = "correct the code, or its arguments: the job has more steps"
                if self._step + 1 >= self._steps:  # asked for by who exports the end of a run, and would go on with it
                    mend = "the job ends there: take the weights alone, or an earlier checkpoint"
                raise JobError(what, WHERE, mend) from error
        self._step += 1

    def _changed(self) -> set[str]:
        """Entries that some group began with, and that are others by now."""
        pairs = list(zip(self._first, self._optimizer.param_groups, strict=True))
        return {key for first, group in pairs for key, value in first.items() if group[key] != value}

    def at(self, step: int) -> list[Options]:
        """By group, what the step's update is made with. Raises JobError for what user code raises."""
        if (known := self._newest.get(step)) is not None:
            return known
        if step < self._step:  # a rollback
            self._begin()
        while self._step < step:
            self._next()
            late = sorted(self._changed() - self.keys)
            if late:
                what = f"it changes {late[0]} from step {self._step} on, and not in the first {LOOKS} steps"
                raise JobError(what, WHERE, "let it set all that it ever changes from its beginning on")
            if step - self._step < NEWEST:
                self._newest[self._step] = self._options()
        self._newest = {known: options for known, options in self._newest.items() if abs(step - known) < NEWEST}
        return self._newest.setdefault(step, self._options())

    def learning_rate(self, step: int) -> float:
        """Of the first group; NaN where the optimizer has none. Raises JobError."""
        options = self.at(step)
        return float(options[0].get("lr", math.nan)) if options else math.nan

    def _options(self) -> list[Options]:
        return [{key: group[key] for key in self.keys if key in group} for group in self._optimizer.param_groups]


class LayerSchedule:
    """Of the groups that one layer's optimizer has, in its order."""

    def __init__(self, schedule: Schedule, numbers: Sequence[int]) -> None:
        """``numbers``: of these groups in the model."""
        self._schedule = schedule
        self._numbers = numbers
        self.keys = schedule.keys

    def at(self, step: int) -> list[Options]:
        """By group. Raises JobError."""
        options = self._schedule.at(step)
        return [options[number] for number in self._numbers]

"""What the events of a run say in numbers: one value a name and step, whoever told it and however often."""

# A number's step is how many steps were trained by then: the loss of step 99, counted from 0, and the evaluation of the
# weights that it led to are both at 100.
#
# A step may be told twice: after a rollback it is committed again, and a coordinator that takes over tells its log from
# the beginning. Its numbers are the same bits, but for how fast it went. So the first one stays, and a tracker that is
# opened again says which steps it has.

from collections.abc import Callable, Iterable
from typing import NamedTuple

from culm.pipeline.money.codec import Entry
from culm.pipeline.money.kinds import Committed, Evaluated, Measured, Planned


class Scalar(NamedTuple):
    """A number of the run."""

    name: str  # such as train/loss
    step: int
    value: float
    time: float  # unix seconds


class Scalars:
    """Derives numbers from events, in their order."""

    def __init__(self, newest: Callable[[str], int]) -> None:
        """``newest``: the last step of a name that was written before; -1: none."""
        self._written = newest
        self._newest: dict[str, int] = {}
        self._samples = self._tokens = 0  # of a step
        self._epoch = 0  # samples; 0: nobody knows
        self._last: tuple[int, float] | None = None  # the last commit's step, and when it was

    def of(self, entry: Entry) -> list[Scalar]:
        """What is new in it."""
        return [scalar for scalar in self._told(entry) if self._is_new(scalar)]

    def _is_new(self, scalar: Scalar) -> bool:
        name = scalar.name
        if name not in self._newest:  # once: a tracker may have to read all that it has for that
            self._newest[name] = self._written(name)
        if scalar.step <= self._newest[name]:
            return False
        self._newest[name] = scalar.step
        return True

    def _told(self, entry: Entry) -> Iterable[Scalar]:
        event, at = entry.event, entry.time
        if isinstance(event, Planned):
            self._samples, self._tokens = event.samples_per_step, event.tokens_per_step
            self._epoch = event.samples_per_epoch
        elif isinstance(event, Measured):
            for name, value in event.metrics.items():
                yield Scalar(f"train/{name}", event.step + 1, value, at)
        elif isinstance(event, Evaluated):
            for name, value in {"loss": event.loss, **event.metrics}.items():
                yield Scalar(f"evaluate/{name}", event.step, value, at)
        elif isinstance(event, Committed):
            trained = event.step + 1
            yield Scalar("train/loss", trained, event.loss, at)
            if event.norm:
                yield Scalar("train/gradient_norm", trained, event.norm, at)
            if event.learning_rate is not None:
                yield Scalar("train/learning_rate", trained, event.learning_rate, at)
            if self._epoch and self._samples:
                yield Scalar("train/epoch", trained, trained * self._samples / self._epoch, at)
            yield from self._speed(event.step, trained, at)
            self._last = (event.step, at)

    def _speed(self, step: int, trained: int, at: float) -> Iterable[Scalar]:
        if self._last is None or self._last[0] != step - 1 or at <= self._last[1]:
            return
        seconds = at - self._last[1]
        for name, count in (("samples", self._samples), ("tokens", self._tokens)):
            if count:
                yield Scalar(f"train/{name}_per_second", trained, count / seconds, at)

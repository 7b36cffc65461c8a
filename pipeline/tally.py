"""What the loss tells of each microbatch, as numbers beside gradients, and what a step makes of them. Pure."""

# Of a microbatch that is trained: its loss; where the loss is a sum (``reduction = "sum"``), the sum, and over how many
# summands it is; then a sum and a count of each metric of training; then the learning rate of the step, which is the
# same with each. Of one that is evaluated: a sum and a count of the loss and of each metric. They lie end to end, what
# is trained in front, in order of microbatch:
#
#     mean         loss, rate, loss, rate, ...
#     sum          sum, count, rate, sum, count, rate, ...
#     a metric     loss, sum, count, rate, loss, sum, count, rate, ...
#     evaluated    sum, count of the loss, sum, count of the first metric, ..., the same of the next microbatch
#
# The learning rate is of user code, which no coordinator runs. So a node tells it, and it rides here.
#
# Over several pipelines: all that a pipeline tells, then all of the next one. They travel with the gradient of the
# model's last layer, and to the coordinator, which alone adds them up: as gradients are, those of a pipeline one after
# the other, then the tree (rule 19). So every coordinator comes to the same loss and scale, and the plain loop too.

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from culm.pipeline import tree


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyForm:
    """Which numbers a job's microbatches tell."""

    counted: bool = False  # whether the loss is a sum, and tells over how many
    measured: tuple[str, ...] = ()  # metrics of what is trained
    metrics: tuple[str, ...] = ()  # of what is evaluated, beside its loss
    rate: bool = False  # whether the step's learning rate is told

    @property
    def of_loss(self) -> int:
        """Numbers that the loss tells of a microbatch that is trained."""
        return 2 if self.counted else 1

    @property
    def trained(self) -> int:
        """Numbers of a microbatch that is trained."""
        return self.before_rate + (1 if self.rate else 0)

    @property
    def before_rate(self) -> int:
        """Of these, what is the microbatch's own."""
        return self.of_loss + 2 * len(self.measured)

    @property
    def counts(self) -> range:
        """Where the counts are among a trained microbatch's numbers."""
        return range(1 if self.counted else 2, self.before_rate, 2)

    @property
    def evaluated(self) -> int:
        """Numbers of a microbatch that is evaluated."""
        return 2 * self.means

    @property
    def means(self) -> int:
        """Numbers that an evaluation comes to."""
        return 1 + len(self.metrics)

    def told(self, trained: int, evaluated: int) -> int:
        """How many numbers a pipeline tells in a step of so many microbatches."""
        return trained * self.trained + evaluated * self.evaluated


LOSS_ALONE = TallyForm()


def in_order(numbers: Iterable[float]) -> float:
    """Their sum, one after the other: Python's ``sum`` rounds differently from 3.12 on."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def parted(tallies: Sequence[float], evaluated: int, pipelines: int) -> tuple[Sequence[float], Sequence[float]]:
    """What was trained, and what was evaluated. ``evaluated``: numbers of the latter that each pipeline tells."""
    if not evaluated:
        return tallies, ()
    each = len(tallies) // pipelines
    told = [tallies[p * each : (p + 1) * each] for p in range(pipelines)]
    trained, rest = (of[:-evaluated] for of in told), (of[-evaluated:] for of in told)
    return [*chain.from_iterable(trained)], [*chain.from_iterable(rest)]


def losses(tallies: Sequence[float], form: TallyForm) -> Sequence[float]:
    """The loss of each microbatch that is trained, as the job gives it."""
    return tallies[:: form.trained]


def counted(tallies: Sequence[float], form: TallyForm, pipelines: int) -> float:
    """By what the step's gradient is to be divided: all counts, or 1.0 where losses are means already."""
    return _total(tallies[1 :: form.trained], pipelines) if form.counted else 1.0


def loss(tallies: Sequence[float], form: TallyForm, pipelines: int) -> float:
    """The step's loss: the mean over microbatches, or over all that was counted; 0.0 of nothing."""
    each = losses(tallies, form)
    of = counted(tallies, form, pipelines) if form.counted else float(len(each))
    return _total(each, pipelines) / of if of else 0.0


def measured(tallies: Sequence[float], form: TallyForm, pipelines: int) -> tuple[float, ...]:
    """Of what was trained: each metric, over all that it counted; NaN of nothing."""
    return _means([_total(tallies[i :: form.trained], pipelines) for i in range(form.of_loss, form.before_rate)])


def learning_rate(tallies: Sequence[float], form: TallyForm) -> float | None:
    """The step's; None where nobody tells it, or the optimizer has none."""
    told = tallies[form.before_rate] if form.rate and tallies else math.nan
    return None if math.isnan(told) else told


def means(tallies: Sequence[float], size: int, pipelines: int) -> tuple[float, ...]:
    """Of what was evaluated: the loss, then each metric, over all that each counted; NaN of nothing."""
    return _means([_total(tallies[i::size], pipelines) for i in range(size)])


def _means(sums: Sequence[float]) -> tuple[float, ...]:
    """``sums``: of what is measured and of its count, in turn."""
    return tuple(total / count if count else math.nan for total, count in zip(sums[::2], sums[1::2], strict=True))


def _total(numbers: Sequence[float], pipelines: int) -> float:
    each = len(numbers) // pipelines
    sums = [in_order(numbers[p * each : (p + 1) * each]) for p in range(pipelines)]
    return tree.total(sums, operator.add) if numbers else 0.0

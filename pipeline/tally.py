"""What the loss tells of each microbatch, as numbers beside gradients, and what a step makes of them. Pure."""

# One number a microbatch, its loss; where the loss is a sum (``reduction = "sum"``), two: the sum, and over how many
# summands it is. They lie end to end, in order of microbatch:
#
#     mean    loss, loss, ...
#     sum     sum, count, sum, count, ...
#
# They travel with the gradient of the model's last layer, and to the coordinator, which alone adds them up: as
# gradients are, those of a pipeline one after the other, then the tree (rule 19). So every coordinator comes to the
# same loss and scale, and the plain loop too.

import operator
from collections.abc import Iterable, Sequence

from culm.pipeline import tree


def in_order(numbers: Iterable[float]) -> float:
    """Their sum, one after the other: Python's ``sum`` rounds differently from 3.12 on."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def losses(tallies: Sequence[float], size: int) -> Sequence[float]:
    """The loss of each microbatch, as the job gives it. ``size``: numbers a microbatch."""
    return tallies[::size]


def counted(tallies: Sequence[float], size: int, pipelines: int) -> float:
    """By what the step's gradient is to be divided: all counts, or 1.0 where losses are means already."""
    return _total(tallies[1::size], pipelines) if size > 1 else 1.0


def loss(tallies: Sequence[float], size: int, pipelines: int) -> float:
    """The step's loss: the mean over microbatches, or over all that was counted; 0.0 of nothing."""
    each = losses(tallies, size)
    of = counted(tallies, size, pipelines) if size > 1 else float(len(each))
    return _total(each, pipelines) / of if of else 0.0


def _total(numbers: Sequence[float], pipelines: int) -> float:
    each = len(numbers) // pipelines
    sums = [in_order(numbers[p * each : (p + 1) * each]) for p in range(pipelines)]
    return tree.total(sums, operator.add) if numbers else 0.0

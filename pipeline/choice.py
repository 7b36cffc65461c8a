"""Which instruction a node runs next, of those whose input is here. Pure."""

# In this order:
#
#     a forward      of the pipeline whose turn it is (``turns``), as long as the stage keeps few enough graphs
#     a backward     later stages first: each one frees a graph, and a stage before waits for its result
#     an evaluation  by turns as well: it keeps no graph, and fills a bubble
#
# A stage keeps lead * (stages after it) + 1 graphs at most, over all pipelines together. With one pipeline that is
# 1F1B: forwards until the pipe is full, then one backward, one forward. With several the next pipeline's forwards fill
# the places of the one that drains, so that the pipe is filled once a step.
#
# Why that cannot stand still: the graphs that a stage keeps wait for the stage after it, and the last stage waits for
# nobody. No order across pipelines is promised, so none has to be agreed on when duties move within a step.
#
# Where backwards are split (zero bubble, after Qi et al., ICLR 2024) backwards go first but for the first stage, since
# nobody waits for that one's. Second halves come last, before the next forward where a stage keeps as many graphs as
# the first one does.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from culm.pipeline.flow import stages_after, takes_samples
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.schedule import Schedule

T = TypeVar("T", bound=tuple[object, ...])  # what names an input: a key, or the instruction that gives it
Missing = Callable[[Instruction], T | None]  # an input of an instruction that is not here; None: all of them are
Ranked = tuple[tuple[int, ...], Instruction]


@dataclass(slots=True, kw_only=True)  # not frozen: one is made before every instruction, in a third of the time
class Left:
    """The heads of what is left of a duty in a step: of each kind the next one, in order of microbatch."""

    duty: Duty
    turn: int = 0  # the pipeline's
    forward: Instruction | None = None
    keeps_graph: bool = True  # its backward is to run as well
    backward: Instruction | None = None  # whose forward's graph is here
    weights: Instruction | None = None  # the second half of a backward that has run
    graphs: int = 0  # that are kept for backwards to come
    evaluation: Instruction | None = None
    halves: int = 0  # microbatches whose forward has run, and whose second half has not; of split backwards alone


def choose(left: Sequence[Left], schedule: Schedule, stages: int, missing: Missing[T]) -> Instruction | None:
    """The next of a node's instructions; None while none of them may run."""
    if not schedule.splits:
        forward = _first(_forwards(left, schedule, stages), missing)
        return forward or _first(_backwards(left), missing) or _first(_evaluations(left), missing)
    backward = _first(_backwards(left), missing)
    if backward is not None and takes_samples(backward.stage):
        return _first(_forwards(left, schedule, stages), missing) or backward
    rest = backward or _first(_forwards(left, schedule, stages), missing) or _first(_weights(left), missing)
    return rest or _first(_evaluations(left), missing)


def awaited(left: Sequence[Left], schedule: Schedule, stages: int, missing: Missing[T]) -> T | None:
    """The input that comes next, as far as can be said, where no instruction may run."""
    for _, head in (*_forwards(left, schedule, stages), *_backwards(left), *_evaluations(left)):
        if (lacked := missing(head)) is not None:
            return lacked
    return None


# What follows runs before every instruction, mostly for one duty: loops take less time than comprehensions there.


def _forwards(left: Sequence[Left], schedule: Schedule, stages: int) -> list[Ranked]:
    """By turn, then of the lowest pipeline and microbatch; the latest stage of those. Of stages that have room."""
    kept: dict[int, int] = {}  # graphs by stage, over all pipelines
    for x in left:
        kept[x.duty.stage] = kept.get(x.duty.stage, 0) + x.graphs
    found: list[Ranked] = []
    for x in left:
        if x.forward is None:
            continue
        if x.keeps_graph:
            most = schedule.lead * stages_after(x.duty.stage, stages) + 1
            most_halves = schedule.lead * (stages - 1) + 1  # as many as the first stage keeps graphs
            if kept[x.duty.stage] >= most or x.halves >= most_halves:
                continue
        found.append(((x.turn, x.duty.pipeline, x.forward.microbatch, -x.duty.stage), x.forward))
    return found


def _backwards(left: Sequence[Left]) -> list[Ranked]:
    found: list[Ranked] = []
    for x in left:
        if x.backward is not None:
            found.append(((-x.duty.stage, x.turn), x.backward))
    return found


def _weights(left: Sequence[Left]) -> list[Ranked]:
    return [((x.duty.pipeline, x.duty.stage), x.weights) for x in left if x.weights is not None]


def _evaluations(left: Sequence[Left]) -> list[Ranked]:
    found: list[Ranked] = []
    for x in left:
        if x.evaluation is not None:
            found.append(((x.turn, x.duty.pipeline, x.evaluation.microbatch, -x.duty.stage), x.evaluation))
    return found


def _first(heads: list[Ranked], missing: Missing[T]) -> Instruction | None:
    """The one of the lowest rank whose input is here."""
    for _, head in sorted(heads):
        if missing(head) is None:
            return head
    return None

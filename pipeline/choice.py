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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from culm.pipeline.flow import stages_after, takes_samples
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.schedule import Schedule

HasInput = Callable[[Instruction], bool]  # whether an instruction's input is here


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


def choose(left: Sequence[Left], schedule: Schedule, stages: int, has_input: HasInput) -> Instruction | None:
    """The next of a node's instructions; None while none of them may run."""
    if not schedule.splits:
        return _forward(left, schedule, stages, has_input) or _backward(left, has_input) or _evaluation(left, has_input)
    backward = _backward(left, has_input)
    if backward is not None and takes_samples(backward.stage):
        return _forward(left, schedule, stages, has_input) or backward
    weights = [x.weights for x in left if x.weights is not None]
    rest = backward or _forward(left, schedule, stages, has_input) or min(weights, default=None)
    return rest or _evaluation(left, has_input)


def _forward(left: Sequence[Left], schedule: Schedule, stages: int, has_input: HasInput) -> Instruction | None:
    return _first(_with_room(left, schedule, stages), has_input)


def _with_room(left: Sequence[Left], schedule: Schedule, stages: int) -> list[tuple[int, Instruction]]:
    """The forwards that are next, with their turns, of stages that may keep their graph."""
    kept: dict[int, int] = {}  # graphs by stage, over all pipelines
    for x in left:
        kept[x.duty.stage] = kept.get(x.duty.stage, 0) + x.graphs
    return [
        (x.turn, x.forward)
        for x in left
        if x.forward is not None and _has_room(x, kept[x.duty.stage], schedule, stages)
    ]


def _backward(left: Sequence[Left], has_input: HasInput) -> Instruction | None:
    found = [(-x.duty.stage, x.turn, x.backward) for x in left if x.backward is not None and has_input(x.backward)]
    return min(found)[-1] if found else None


def _evaluation(left: Sequence[Left], has_input: HasInput) -> Instruction | None:
    return _first([(x.turn, x.evaluation) for x in left if x.evaluation is not None], has_input)


def _first(heads: Iterable[tuple[int, Instruction]], has_input: HasInput) -> Instruction | None:
    """By turn, then of the lowest pipeline and microbatch; the latest stage of those."""
    found = [(turn, i.duty.pipeline, i.microbatch, -i.duty.stage, i) for turn, i in heads if has_input(i)]
    return min(found)[-1] if found else None


def awaited(left: Sequence[Left], schedule: Schedule, stages: int, has_input: HasInput) -> Instruction | None:
    """The instruction whose input comes next, as far as can be said, where none may run."""
    forwards = (forward for _, forward in _with_room(left, schedule, stages))
    backwards = (x.backward for x in left if x.backward is not None)
    evaluations = (x.evaluation for x in left if x.evaluation is not None)
    return next((i for heads in (forwards, backwards, evaluations) for i in heads if not has_input(i)), None)


def _has_room(x: Left, kept: int, schedule: Schedule, stages: int) -> bool:
    """Whether the stage may keep one more graph, which it does where the microbatch's backward is to run as well."""
    if not x.keeps_graph:
        return True
    # As many as the first stage keeps: its warmup, and one.
    most_halves = schedule.lead * (stages - 1) + 1
    if x.halves >= most_halves:
        return False
    return kept < schedule.lead * stages_after(x.duty.stage, stages) + 1

"""What an heir has to do again of a duty that came to it within the step (rule 9).

It redoes what is not held by whoever consumes it: a gradient that was reduced and sent is not computed again, nor is
an activation that the next stage has. What its neighbours hold they tell by acknowledging, after its Hello.
"""

# An heir's work falls into three cases, which ``Runner._part`` tells apart:
#
# 1. Some layer's reducer lacks the pipeline. All backwards have to run again, and so all forwards before them: the heir
#    runs the whole duty, but for what it ran ahead itself.
# 2. The same, and a prefix of the sum is here (ACCUMULATED, shipped by the lost owner). The microbatches after the
#    prefix run again. Of those in it only results run that a consumer lacks; their backwards add nothing.
# 3. Every reducer has the pipeline, or the whole sum is here: the owner died after sending it. Only results that a
#    consumer lacks run, most often none.
#
# In cases 2 and 3 the heir waits until both neighbours have said what they hold. Without that it would redo work that
# nobody needs, or, worse, never send what somebody waits for. In case 1 it begins at once: forwards are needed anyhow.
# A stage's one owner is its own reducer. Where there are several the others have to say first what they cover.
#
# Why a forward may need those before it: BatchNorm's running statistics change with every forward, in order of
# microbatch. So the buffers of microbatch 3 are right only if 0 to 2 ran before (``each_alone`` says where not).

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from culm.pipeline.instruction import Instruction
from culm.pipeline.plan import PlanOrder


@dataclass(slots=True)
class Takeover:
    """Forgotten with the step's commit: from then on the heir is an owner like any other."""

    since: PlanOrder  # of the plan by which the duty came
    known: set[Instruction] = field(default_factory=set)  # whose results a consumer held already
    resumed: bool = False  # the duty's first instruction since has begun, and is reported

    def redone(self, order: Sequence[Instruction], done: Collection[Instruction]) -> int:
        """How many instructions ran here though the lost owner had finished them: all up to its last known result."""
        last = max((i for i, x in enumerate(order) if x in self.known), default=-1)
        return sum(x in done for x in order[: last + 1])


def needed_for(lacking: Sequence[Instruction], each_alone: bool) -> set[Instruction]:
    """What is to be run so that these results exist again, of one duty whose parameter gradients are already here.

    ``each_alone``: the stage's forwards change no buffers, so a microbatch's forward needs none before it.
    """
    needed = {i.microbatch for i in lacking if i.op != "E"}
    forwards = needed if each_alone else set(range(max(needed, default=-1) + 1))
    # A backward needs its forward's graph. An evaluation needs nothing.
    return {Instruction(i.duty, "F", m) for i in lacking[:1] for m in forwards} | {i for i in lacking if i.op in "BE"}


def lost_results(
    order: Sequence[Instruction],
    done: Collection[Instruction],
    lacks: Callable[[Instruction], bool],
    each_alone: bool,
) -> set[Instruction]:
    """What is left to redo of work whose gradients are here: what some consumer ``lacks``, and what that needs."""
    return needed_for([i for i in order if lacks(i)], each_alone) - set(done)

"""When a run ends before its last step: so many evaluations in a row were no better than the best one. Pure."""

# A run of 3 allowed, by accuracy. The evaluation of version t is a part of step t, so it is known with that commit:
#
#     step 20     evaluates version 20: 0.88     commit: best 0.88 of step 20
#     step 40     evaluates version 40: 0.91     commit: best 0.91 of step 40
#     step 60     evaluates version 60: 0.90     commit: 1 in a row that is no better
#     step 80     evaluates version 80: 0.91     commit: 2; an equal one is no better
#     step 100    evaluates version 100: 0.89    commit: 3, so the run ends. Step 100 becomes its closing step: the
#                                                commit has scale 0, and version 100 stays as it is
#
# What is decided follows from ``BestSoFar`` and the evaluation alone. ``BestSoFar`` of a version is a function of the
# evaluations that were committed before it. So it goes wherever the version goes: with each commit, which nodes keep
# and repeat; and with each checkpoint, which an era begins from.

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from culm.pipeline.evaluations import Best


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The best evaluation before a version, and how many came after it: all of them no better.

    ``step``: whose weights it was; 0: no evaluation has given a number yet.
    """

    step: int = 0
    number: float = 0.0
    worse_in_a_row: int = 0

    def after(self, best: Best, step: int, evaluated: Sequence[float]) -> "BestSoFar":
        """With the evaluation of the weights of this step. What is no number is no better than anything."""
        number = evaluated[best.place]
        better = number > self.number if best.most else number < self.number
        if not isnan(number) and (better or not self.step):
            return BestSoFar(step, number)
        return BestSoFar(self.step, self.number, self.worse_in_a_row + 1)


NONE_SO_FAR = BestSoFar()


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """A run has ended with the weights of this step, whose evaluation was one too many that is no better."""

    step: int
    best_so_far: BestSoFar = NONE_SO_FAR  # before that evaluation

    def in_words(self, name: str) -> str:
        """Why the run has ended. ``name``: of the number that tells what is best."""
        best, count = self.best_so_far, self.best_so_far.worse_in_a_row + 1
        than = f"no better {name} than {best.number:.4g} of step {best.step}" if best.step else f"no {name} is a number"
        return f"stopped early at step {self.step}: {than} in {count} evaluation{'s' if count > 1 else ''}"


def early_stop(before: BestSoFar, best: Best, allowed: int, step: int, evaluated: Sequence[float]) -> EarlyStop | None:
    """Whether the run ends with the weights that were evaluated. ``allowed``: evaluations in a row; 0: any number."""
    ends = bool(allowed and evaluated) and before.after(best, step, evaluated).worse_in_a_row >= allowed
    return EarlyStop(step, before) if ends else None


# ---- as plain data --------------------------------------------------------------------------------------------------


def best_so_far_to(known: BestSoFar) -> dict[str, Any]:
    """JSON-able; the number in hex, which is exact."""
    return {"step": known.step, "number": known.number.hex(), "worse_in_a_row": known.worse_in_a_row}


def best_so_far_from(content: Any) -> BestSoFar:
    """Raises ValueError, KeyError, TypeError or AttributeError for what ``best_so_far_to`` does not give."""
    known = BestSoFar(int(content["step"]), float.fromhex(content["number"]), int(content["worse_in_a_row"]))
    if isnan(known.number) or min(known.step, known.worse_in_a_row) < 0:
        raise ValueError(f"{known} is not possible")
    return known

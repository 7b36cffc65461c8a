"""When the weights are evaluated, and what a step is then. Pure."""

# An evaluation is forwards alone, of samples that nobody trains on. It is part of the step that begins with the weights
# that it is about:
#
#     step 3      trains                       commit: version 4
#     step 4      trains, evaluates version 4  commit: version 5, and how good version 4 was
#     ...
#     step N      evaluates version N          commit: the closing step changes nothing
#
# So an evaluation has no protocol of its own: what it gives are tensors of a step, keyed like all others and kept until
# its commit, and a lost node's part of it moves with its duties (rule 9). Stages run it where they have nothing else to
# do, in the bubbles. What comes of it rides with the model's last gradient, as losses do (``culm.pipeline.tally``).
#
# The samples of an evaluation, of ``samples`` in microbatches of ``size``, lie one after the other; pipeline p takes
# those numbered from p * microbatches on. Where they do not divide, the last microbatches count nothing: they run
# samples from the beginning once more.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """Of a job. ``every``: in steps; 0: there are none, and no closing step."""

    every: int = 0
    samples: int = 0
    size: int = 1  # samples in a microbatch
    pipelines: int = 1

    @property
    def microbatches(self) -> int:
        """Of each pipeline in one evaluation."""
        return -(-self.samples // (self.size * self.pipelines))

    @property
    def last(self) -> tuple[int, int]:
        """Pipeline and number of the last microbatch that counts: it may have fewer samples."""
        return divmod(-(-self.samples // self.size) - 1, self.microbatches)

    def end(self, steps: int) -> int:
        """The version at which a run of so many trained steps is over: one more for the closing step."""
        return steps + 1 if self.every else steps

    def in_step(self, step: int, steps: int) -> int:
        """Microbatches of each pipeline that the step evaluates; ``steps``: that are trained."""
        due = self.every and (step == steps or (step and step % self.every == 0))
        return self.microbatches if due else 0

    def samples_of(self, pipeline: int, microbatch: int) -> range:
        """Which samples a microbatch evaluates; none where it counts nothing."""
        first = (pipeline * self.microbatches + microbatch) * self.size
        return range(min(first, self.samples), min(first + self.size, self.samples))


NEVER = Evaluations()


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """By which of an evaluation's numbers weights are the best: its place, the loss being the first one."""

    place: int = 0
    most: bool = False  # whether more is better

    def of(self, evaluated: Mapping[int, Sequence[float]]) -> int | None:
        """The step, of these; of equals the first. What is no number is never the best."""
        ranked = {step: numbers[self.place] for step, numbers in evaluated.items() if len(numbers) > self.place}
        ranked = {step: -number if self.most else number for step, number in ranked.items() if not isnan(number)}
        return min(ranked, key=lambda step: (ranked[step], step), default=None)


BY_LOSS = Best()

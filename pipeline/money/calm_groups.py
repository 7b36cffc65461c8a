"""How long calm steps take, and how much that varies from one group of steps to the next."""

from dataclasses import dataclass, field
from hashlib import sha256
from statistics import variance

from culm.pipeline.plan import Stages

# A machine that is slow for a minute is slow for many steps in a row. So single steps say too little of how far off a
# sum of them may be. Groups of steps, one after another, say more: the longer a run, the longer a group.
#
#     step        1   2   3   4   5   6   7   8   9          MOST_GROUPS is 4 here
#     groups of 1 |1.0|1.1|1.0|1.2|
#     groups of 2 |  2.1  |  2.2  |  2.0  |  2.1  |         two neighbours became one
#
# A run that loses nodes goes from one shape to another and back. So there are two of them: all calm steps, and those
# since the shape changed last.

LEAST_STEPS = 5  # of fewer nobody can tell how much they vary
MOST_GROUPS = 32
COARSEST = 4  # groups that still tell how much they vary. Invariant: no more than LEAST_STEPS
LEAST_GROUPS = 8  # the newest, that are looked at however few steps are left


@dataclass(eq=False, kw_only=True)
class Groups:
    """Calm steps in groups of one size. Invariant: fewer groups than MOST_GROUPS, fewer steps open than ``size``."""

    size: int = 1  # steps in a group
    seconds: list[float] = field(default_factory=list)  # of each group
    open_steps: int = 0  # of the group that is not full yet
    open_seconds: float = 0.0

    def take(self, seconds: float) -> None:
        """The next calm step."""
        self.open_steps += 1
        self.open_seconds += seconds
        if self.open_steps < self.size:
            return
        self.seconds.append(self.open_seconds)
        self.open_steps, self.open_seconds = 0, 0.0
        if len(self.seconds) == MOST_GROUPS:
            self.seconds = [one + other for one, other in zip(self.seconds[::2], self.seconds[1::2], strict=True)]
            self.size *= 2

    def newest(self, steps: int) -> "Groups":
        """Of about so many steps: what was long ago tells little of what comes soon."""
        count = max(LEAST_GROUPS, -(-steps // self.size))
        return Groups(
            size=self.size,
            seconds=self.seconds[-count:],
            open_steps=self.open_steps,
            open_seconds=self.open_seconds,
        )

    @property
    def steps(self) -> int:
        return len(self.seconds) * self.size + self.open_steps

    @property
    def mean(self) -> float:
        """Seconds of a step."""
        return (sum(self.seconds) + self.open_seconds) / self.steps

    @property
    def variance(self) -> tuple[float, int]:
        """Of the sum of all these steps, in square seconds, and from how many groups it is known.

        By the size of groups for which it is largest: what is slow for long shows in large groups alone.
        """
        seconds, size = self.seconds, self.size
        found = []
        while len(seconds) >= COARSEST:
            found.append((variance(seconds) * self.steps / size, len(seconds)))
            seconds, size = [one + other for one, other in zip(seconds[-2::-2], seconds[::-2], strict=False)], 2 * size
        return max(found)


@dataclass(eq=False, kw_only=True)
class CalmGroups:
    """All calm steps of a run but the first of each shape, which builds what others find: it tells nothing of them."""

    whole: Groups = field(default_factory=Groups)
    present: Groups = field(default_factory=Groups)  # since the shape changed last
    shape: str = ""
    is_first: bool = True  # whether the next step is the shape's first

    def plan(self, stages: Stages) -> None:
        """Who runs what, from now on."""
        shape = shape_of(stages)
        if shape != self.shape:
            self.shape, self.is_first, self.present = shape, True, Groups()

    def take(self, seconds: float) -> None:
        """A calm step."""
        if self.is_first:
            self.is_first = False
            return
        self.whole.take(seconds)
        self.present.take(seconds)


def shape_of(stages: Stages) -> str:
    """The same for stages that are cut and shared alike, whichever nodes have them: so long as to tell them apart."""
    number: dict[str, int] = {}
    alike = [
        (stage.first_layer, stage.end_layer, [number.setdefault(owner, len(number)) for owner in stage.owners])
        for stage in stages
    ]
    return sha256(repr(alike).encode()).hexdigest()[:16]

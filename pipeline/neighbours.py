"""Which chunks of a graph exchange values at every layer, and how old these may be. Pure."""

from dataclasses import dataclass, field
from functools import cached_property

# Bounded staleness, after Dorylus (OSDI 2021) and PipeGCN (ICLR 2022), but exact: a chunk takes its neighbours' values,
# and the gradients that they give, of exactly so many epochs before, and never of another one that happens to be there.
# So it waits for nobody within an epoch, and which machine is faster changes no bit. Its own values are always of this
# epoch, and so are the weights: every epoch is committed before the next one begins.
#
#     most = 1, refresh = 4     epoch   0  1  2  3  4  5 ...
#                               lag     0  1  1  1  0  1
#
# What a chunk takes of an epoch before is held by its present owner and by whoever gave it, and lies in no checkpoint.
# So chunks move to other owners where an epoch is fresh. Where an owner is lost, and later epochs take of one that has
# begun, the run goes back to the newest checkpoint, after which an epoch is fresh: what the owner had given to its own
# chunks nobody else has. Between the last epoch that takes such values and the end, and in a pause, which waits for a
# fresh epoch, nothing is lost with it.


@dataclass(frozen=True)
class Staleness:
    """``most``: epochs; ``refresh``: after how many epochs one is fresh again; from ``fresh_from`` on all are."""

    most: int = 0
    refresh: int = 1
    fresh_from: int = 0

    def lag(self, step: int, origin: int = 0) -> int:
        """How old what a chunk takes of others is in this epoch. ``origin``: of the era, before which nothing is."""
        return 0 if step >= self.fresh_from else min(self.most, step % self.refresh, step - origin)

    def takes_before(self, begun: int, steps: range, origin: int = 0) -> bool:
        """Whether one of these epochs takes values of one before ``begun``. ``steps``: all that are not committed."""
        lags = [(step, self.lag(step, origin)) for step in steps[: self.most + 1]]  # later ones take of none of these
        return any(lag > 0 and step - lag < begun for step, lag in lags)


FRESH = Staleness()


@dataclass(frozen=True)
class Neighbours:
    """``before[p]``: the chunks that have edges into chunk p, ascending, and p itself, which is always among them.

    A chunk is a pipeline of a graph's job: a fixed part of its vertices. What a layer gives of one chunk is wanted by
    the next layer of every chunk after it.
    """

    before: tuple[tuple[int, ...], ...]
    staleness: Staleness = field(default=FRESH)

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """By chunk: those into which it has edges, ascending, and itself."""
        found: list[list[int]] = [[] for _ in self.before]
        for p, sources in enumerate(self.before):
            for q in sources:
                found[q].append(p)
        return tuple(map(tuple, found))

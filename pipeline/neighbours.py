"""Which chunks of a graph exchange values at every layer. Pure."""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Neighbours:
    """``before[p]``: the chunks that have edges into chunk p, ascending, and p itself, which is always among them.

    A chunk is a pipeline of a graph's job: a fixed part of its vertices. What a layer gives of one chunk is wanted by
    the next layer of every chunk after it.
    """

    before: tuple[tuple[int, ...], ...]

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """By chunk: those into which it has edges, ascending, and itself."""
        found: list[list[int]] = [[] for _ in self.before]
        for p, sources in enumerate(self.before):
            for q in sources:
                found[q].append(p)
        return tuple(map(tuple, found))

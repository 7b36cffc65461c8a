"""What a layer's input shares its memory with, and so what a layer must not do that writes into its input.

In one process such a layer writes into whatever lies there. Where it is the first of a stage it writes into a copy.
So what it writes into must be nobody else's, or the bits, or whether a step raises, would depend on the cut.
"""

# Places: an input and an output are pytrees, whose tensors are numbered in order (``pytrees.tensors_in``).
#
#     layer 0 (Sigmoid)       gives y      its backward reads y
#     layer 1 (Unflatten)     gives y'     a view of y: the memory is passed on
#     layer 2 (ReLU in place) writes       into y' and so into y: cut before it all goes well, uncut torch raises

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from culm.pipeline.errors import JobError

Pairs = frozenset[tuple[int, int]]


class Memory(NamedTuple):
    """What a forward did with its input's and its output's memory, by place."""

    written: frozenset[int]  # of the input
    passed_on: Pairs  # places of the input, each with one of the output that lies in its memory
    kept: Mapping[int, str]  # of the output: what of the layer's own lies there, such as "the buffer mean"
    overlapping: Pairs  # of the output, two and two that lie in one piece


class Giver(NamedTuple):
    """A layer, and whether its backward reads its output at some of these places."""

    name: str
    needs_output: Callable[[frozenset[int]], bool]


@dataclass(frozen=True, slots=True)
class Sharers:
    """Of the memory of what the next layer, or the loss, takes, by its places.

    ``givers``: layers whose output lies there, each with pairs of a place of its output and one here.
    """

    kept: Mapping[int, str] = field(default_factory=dict[int, str])
    overlapping: Pairs = frozenset()
    givers: tuple[tuple[Giver, Pairs], ...] = ()

    def after(self, giver: Giver, count: int, memory: Memory) -> "Sharers":
        """Of what ``giver`` gives, having taken this: ``count`` tensors."""

        def moved(place: int) -> list[int]:
            return [after for before, after in memory.passed_on if before == place]

        kept = {after: words for place, words in self.kept.items() for after in moved(place)}
        kept |= {place: f"{own} of {giver.name}" for place, own in memory.kept.items()}
        still = {(a, b) for one, other in self.overlapping for a in moved(one) for b in moved(other)}
        before = [
            (each, frozenset((given, after) for given, place in pairs for after in moved(place)))
            for each, pairs in self.givers
        ]
        own = (giver, frozenset((place, place) for place in range(count)))
        return Sharers(kept, memory.overlapping | still, (*(each for each in before if each[1]), own))

    def refuse_writing(self, name: str, written: frozenset[int], where: str) -> None:
        """Raises JobError where ``name`` must not write into these places of its input, as it does."""
        if kept := next((words for place, words in self.kept.items() if place in written), ""):
            what = f"{name} writes into its input, which {kept} keeps: whether it sees that depends on the cut"
            raise JobError(what, where, "hand on or keep a copy (clone()) of it, or write nothing in place")
        if any(written.intersection(pair) for pair in self.overlapping):
            what = f"{name} writes into its input, two tensors of which share memory: elsewhere they are two copies"
            raise JobError(what, where, "hand on a copy (clone()) of one of them, or write nothing in place")
        for giver, pairs in self.givers:
            places = frozenset(given for given, here in pairs if here in written)
            if places and giver.needs_output(places):
                what = f"{name} writes into its input, which the backward of {giver.name} needs as it was"
                raise JobError(what, where, "write nothing in place there (inplace=False)")


NOBODY = Sharers()  # samples are each microbatch's own

"""A node's part of a step: instructions in their order, and how far it has come."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from culm.pipeline.instruction import Instruction


class Program:
    """Asked before every instruction: what is done at its beginning is not looked at again."""

    def __init__(self, instructions: Sequence[Instruction] = ()) -> None:
        self._instructions = instructions
        self._position = 0  # Invariant: all before is done

    def restart(self) -> None:
        """Another step begins."""
        self._position = 0

    def left(self, is_done: Callable[[Instruction], bool]) -> Iterator[Instruction]:
        """What is not done, in order. Until ``restart`` whatever is done stays so."""
        while self._position < len(self._instructions) and is_done(self._instructions[self._position]):
            self._position += 1
        return (i for i in islice(self._instructions, self._position, None) if not is_done(i))

"""A node's part of a step: instructions in their order, and how far it has come."""

from collections.abc import Container, Iterator, Sequence
from itertools import islice

from culm.pipeline.schedule import Instruction


class Program:
    """Asked before every instruction: what is done at its beginning is not looked at again."""

    def __init__(self, instructions: Sequence[Instruction] = ()) -> None:
        self._instructions = instructions
        self._position = 0  # all before is done

    def restart(self) -> None:
        """Another step begins."""
        self._position = 0

    def head(self, done: Container[Instruction]) -> Instruction | None:
        """The first that is not done; None if all is. Until ``restart`` whatever is done stays so."""
        while self._position < len(self._instructions):
            head = self._instructions[self._position]
            if head not in done:
                return head
            self._position += 1
        return None

    def left(self, done: Container[Instruction]) -> Iterator[Instruction]:
        """What is not done, in order."""
        self.head(done)
        return (i for i in islice(self._instructions, self._position, None) if i not in done)

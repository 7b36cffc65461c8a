"""What a node has run ahead of a loss: forwards of stages that it stands by for, in the running step."""

from collections.abc import Iterable
from typing import Generic

from culm.pipeline.schedule import Instruction
from culm.stage_server.worker.instructions import V


class Ahead(Generic[V]):
    """Outputs of redundant forwards, by stage, microbatch after microbatch; forgotten with the step's commit.

    ``ticket`` tells work of this step and era from work that was begun before: it is negative, a tenure never is.
    """

    def __init__(self) -> None:
        self.ticket = -1
        self.adopted: set[Instruction] = set()  # of stages taken over since: done before the loss, not again
        self._outputs: dict[int, list[V | None]] = {}
        self._spoilt: set[int] = set()  # stages whose graphs were dropped within the step
        self._stopped = False

    def next_of(self, stage: int) -> int | None:
        """The microbatch to run next; None if the stage is not to be run ahead in this step any more."""
        return None if self._stopped or stage in self._spoilt else len(self._outputs.get(stage, ()))

    def put(self, instruction: Instruction, output: V | None) -> bool:
        """Takes a forward's output; False if it came out of turn and is of no use."""
        if instruction.stage in self._spoilt or len(self._outputs.get(instruction.stage, ())) != instruction.microbatch:
            return False
        self._outputs.setdefault(instruction.stage, []).append(output)
        return True

    def outputs(self, stage: int) -> list[V | None]:
        return self._outputs.get(stage, [])

    def drop(self, stages: Iterable[int]) -> None:
        """These stages are another node's to stand by for: their graphs go."""
        for stage in stages:
            if stage in self._outputs:
                del self._outputs[stage]
                self._spoilt.add(stage)

    def stages(self) -> list[int]:
        return list(self._outputs)

    def spoil(self, stage: int) -> None:
        """The stage begins anew here, as its owner: what is still being run ahead for it does not count."""
        self._spoilt.add(stage)

    def stop(self) -> None:
        """No more in this step: memory is short."""
        self._stopped = True

    def forget(self) -> None:
        self.ticket -= 1
        self.adopted.clear()
        self._outputs.clear()
        self._spoilt.clear()
        self._stopped = False

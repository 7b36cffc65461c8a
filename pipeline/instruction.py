"""A unit of work: a duty's forward or backward of one microbatch."""

from typing import Literal, NamedTuple

Pass = Literal["F", "B", "W"]


class Duty(NamedTuple):
    """A stage of a pipeline, which one node runs. Prints as ``2``, in pipelines after the first as ``p1/2``."""

    pipeline: int
    stage: int

    def __str__(self) -> str:
        return f"p{self.pipeline}/{self.stage}" if self.pipeline else str(self.stage)


class Instruction(NamedTuple):
    """Prints as ``2B3``: stage 2's backward of microbatch 3; as ``p1/2B3`` that of pipeline 1.

    Where the schedule splits backwards, B is the gradient of the input and W, later, that of the parameters.
    """

    duty: Duty
    op: Pass
    microbatch: int

    @property
    def stage(self) -> int:
        return self.duty.stage

    def __str__(self) -> str:
        return f"{self.duty}{self.op}{self.microbatch}"

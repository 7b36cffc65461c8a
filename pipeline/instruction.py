"""A unit of work: a duty's forward or backward of one microbatch, or its forward of one that is evaluated."""

from typing import Literal, NamedTuple

Pass = Literal["F", "B", "W", "E"]


def _prefix(pipeline: int) -> str:
    return f"p{pipeline}/" if pipeline else ""


class Duty(NamedTuple):
    """A stage of a pipeline, which one node runs. Prints as ``2``, in pipelines after the first as ``p1/2``."""

    pipeline: int
    stage: int

    def __str__(self) -> str:
        return f"{_prefix(self.pipeline)}{self.stage}"


class Instruction(NamedTuple):
    """Prints as ``2B3``: stage 2's backward of microbatch 3; as ``p1/2B3`` that of pipeline 1.

    Where the schedule splits backwards, B is the gradient of the input and W, later, that of the parameters. E is a
    forward that no backward follows, of a microbatch that is evaluated; these are numbered by themselves.
    """

    duty: Duty
    op: Pass
    microbatch: int

    @property
    def stage(self) -> int:
        return self.duty.stage

    @property
    def of_stage(self) -> str:
        """The same without its stage, which under another cut is another one: ``B3``, ``p1/B3``."""
        return f"{_prefix(self.duty.pipeline)}{self.op}{self.microbatch}"

    def __str__(self) -> str:
        return f"{self.duty}{self.op}{self.microbatch}"

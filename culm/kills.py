"""The faults that a user asks for: ``--kill NODE@STEP[:INSTRUCTION]``."""

import re
from dataclasses import dataclass

from pipeline.errors import JobError
from stage_server.faults import KINDS

DEFAULT = "backward"


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill -9 the node at an instruction of a step, which it does to itself."""

    node: str
    step: int
    instruction: str

    @property
    def at(self) -> str:
        return f"{self.step}:{self.instruction}"

    def __str__(self) -> str:
        return f"{self.node}@{self.at}"


def parse_kill(text: str, nodes: int, steps: int) -> Kill:
    """``n1@12:2B3``, ``1@12`` or ``n1@12:send:2B3``. Raises JobError in one line for anything else."""
    form = "write NODE@STEP[:INSTRUCTION], such as n1@12:2B3 or n1@12:send"
    match = re.fullmatch(r"(?:n|node-?)?(\d+)@(\d+)(?::(.+))?", text.strip())
    if match is None:
        raise JobError(f"{text!r} names no kill", "--kill", form)
    node, step, instruction = int(match[1]), int(match[2]), match[3] or DEFAULT
    if node >= nodes:
        raise JobError(f"there is no node n{node}", f"--kill {text}", f"name one of n0 to n{nodes - 1}")
    if step >= steps:
        raise JobError(f"the run has no step {step}", f"--kill {text}", f"name one of 0 to {steps - 1}")
    kind, _, label = instruction.partition(":")
    label = label if kind in KINDS else kind
    if (label and not re.fullmatch(r"\d+([FBW]\d+)?", label)) or (kind not in KINDS and not re.search("[FBW]", kind)):
        mend = f"write a label such as 2B3, or one of {', '.join(KINDS)}"
        raise JobError(f"{instruction!r} is no instruction", f"--kill {text}", mend)
    return Kill(f"n{node}", step, instruction)

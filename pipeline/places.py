"""Places in a run where a node is to die, ``STEP:INSTRUCTION``: for demos, tests and operators."""

import re
from typing import NamedTuple

KINDS = ("forward", "backward", "send", "receive", "sum", "ship", "ready", "commit")

_LABEL = re.compile(r"(p[0-9]{1,9}/)?[0-9]+[FBWE][0-9]+|[0-9]+")  # an instruction, or a stage


class Place(NamedTuple):
    """The first instruction of a kind of ``KINDS`` in a step, the one with a label (``2B3``, ``p1/2B3``), or both."""

    step: int
    kind: str  # empty: any
    label: str  # empty: any


def parse_place(text: str) -> Place:
    """Raises ValueError, in words, for what names no place."""
    step, _, instruction = text.partition(":")
    kind, _, label = instruction.partition(":")
    if kind not in KINDS:
        kind, label = "", instruction
    names_one = kind or re.search("[FBWE]", label)
    if not re.fullmatch(r"[0-9]{1,18}", step) or not names_one or (label and not _LABEL.fullmatch(label)):
        mend = f"write STEP:INSTRUCTION, such as 12:2B3, or one of {', '.join(KINDS)} as the instruction"
        raise ValueError(f"{text[:80]!r} names no instruction: {mend}")
    return Place(int(step), kind, label)

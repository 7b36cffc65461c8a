"""Which forwards are run once more on another machine, and by whom: to find a machine that computes wrongly. Pure."""

# A machine may compute wrongly and say nothing: a weak core, a bit that flips in memory. What it gives looks like any
# other tensor. So a share of the forwards is run again by another holder of the stage, and whoever consumes the first
# one's output tells its digest beside the auditor's:
#
#     owner of stage 1     activation of microbatch 3 ──▶ owner of stage 2     digest d ──▶ coordinator: equal?
#     another holder of 1  its forward of microbatch 3                         digest d' ─▶
#
# Which ones follows from the era, the step and the microbatch, by a hash: nobody has to tell anybody, and after a
# rollback others are drawn. In the last stage the numbers that the loss tells take the place of the output.

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from culm.pipeline.instruction import Duty
from culm.pipeline.plan import Plan

DRAWN = 1 << 64


@dataclass(frozen=True, slots=True)
class Audited:
    """What a node says of one forward of the step: the digest of its output."""

    pipeline: int
    stage: int
    microbatch: int
    digest: int  # 64 bits


def digest_of_numbers(numbers: Sequence[float]) -> int:
    """Of what the loss tells of a microbatch: the last stage has no other output."""
    said = struct.pack(f"<{len(numbers)}d", *numbers)
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little")


@lru_cache(maxsize=1 << 16)
def _draw(era: int, step: int, pipeline: int, stage: int, microbatch: int) -> int:
    """A number below ``DRAWN``, the same everywhere."""
    said = struct.pack("<5Q", era, step, pipeline, stage, microbatch)
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little")


def auditor_of(plan: Plan, duty: Duty, microbatch: int, era: int, step: int) -> str | None:
    """Who runs the forward again under the plan; None: it is not drawn, or nobody else holds the stage."""
    drawn = _draw(era, step, duty.pipeline, duty.stage, microbatch)
    if drawn >= plan.audit * DRAWN:
        return None
    others = [node for node in plan.stages[duty.stage].required() if node != plan.owner_of(duty)]
    # By its low bits: those above have decided that it is drawn.
    return others[drawn % 65521 % len(others)] if others else None


def audits_of(plan: Plan, node: str, microbatches: int, era: int, step: int) -> list[tuple[Duty, int]]:
    """The duties and microbatches that the node is to run again in the step, ascending."""
    if not plan.audit:
        return []
    held = [s for s in plan.held_by(node) if node in plan.stages[s].required()]
    duties = (Duty(p, s) for p in range(plan.pipelines) for s in held)
    return [(duty, m) for duty in duties for m in range(microbatches) if auditor_of(plan, duty, m, era, step) == node]

"""What a node's pieces of work count as: as what their time is kept, and for what the compute thread's time goes."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from culm.pipeline.flow import FORWARDS
from culm.pipeline.instruction import Pass
from culm.stage_server.worker.work import Apply, Audit, Check, Load, Reduce, Run, Sum, V, Work

Phase = Literal["forward", "backward", "redundant", "apply", "bubble", "idle"]


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Such as the forwards of one stage. There is one object of each, which ``kind_of`` gives."""

    name: str
    phase: Phase
    # Whether it takes about as long each time, as long as the node holds the same layers: else no history is kept.
    is_regular: bool = False
    # Whether it tells how slow the node is: it is of the node's own stages, and computes the same each time.
    is_measure: bool = False


@cache
def _of_runs(stage: int, op: Pass, ahead: bool) -> Kind:
    if ahead:
        return Kind(f"{stage}{op} ahead", "redundant", is_regular=True)
    return Kind(f"{stage}{op}", "forward" if op in FORWARDS else "backward", is_regular=True, is_measure=True)


@cache
def _of_others(name: str, phase: Phase, is_regular: bool) -> Kind:
    return Kind(name, phase, is_regular)


def kind_of(work: Work[V] | Load) -> Kind:
    """Samples are for forwards; giving a stage's reduced gradient ends its backwards."""
    if isinstance(work, Run):
        return _of_runs(work.instruction.stage, work.instruction.op, work.redundant)
    phase: Phase = "apply"
    if isinstance(work, Load):
        phase = "forward"
    elif isinstance(work, Audit | Check):
        phase = "redundant"
    elif isinstance(work, Reduce | Sum):
        phase = "backward"
    # To arrange takes no time at all, or builds layers. A layer that was seeded catches up by itself.
    is_regular = isinstance(work, Reduce | Sum) or (isinstance(work, Apply) and not work.catch_up)
    return _of_others(type(work).__name__.lower(), phase, is_regular)

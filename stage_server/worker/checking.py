"""What a node checks of itself and of others in a step: its layers' state, and forwards that others have run (rule 25).

A machine that computes wrongly says nothing of it. So each holder tells a digest of its state before a step commits,
and of a share of the forwards (``culm.pipeline.audits``) the output's digest is told twice: by whoever consumes it, and
by another holder of the stage, which runs the forward again. The coordinator compares.
"""

# A step on a node that checks:
#
#     plan          names the forwards that it is to audit; whoever gives the inputs sends them here as well
#     next          while nothing else is to be done: a Check of a layer, an Audit whose input is here
#     lacks         a part is not ready before these are done: so nothing commits that was not compared
#
# Another plan within the step may name other forwards. What was found stays, and is told: what is compared is what the
# coordinator has heard twice.
#
# The consumer tells the digest of what it took, not the owner of what it gave: an owner that is lost in the step may
# have passed on a wrong activation, and says nothing any more.

from typing import Generic

from culm.pipeline import flow
from culm.pipeline.audits import Audited, auditor_of, audits_of
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.plan import Plan
from culm.stage_server.worker.holdings import Holdings
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.post import Post
from culm.stage_server.worker.work import Audit, Check, V


class Checking(Generic[V]):
    """Does nothing where the job audits nothing."""

    def __init__(self, position: Position, holdings: Holdings[V], post: Post[V]) -> None:
        self._at = position
        self._holdings = holdings
        self._post = post
        self._states: dict[int, tuple[int, int]] = {}  # layer -> (version, digest)
        self._audits: list[tuple[Duty, int]] = []  # what is to be run again in the step, by the present plan
        self._found: dict[tuple[Duty, int], int | None] = {}  # None: it cannot be compared

    # ---- what moves it ----------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """The running step is another one, or it begins anew."""
        self._found.clear()
        self.adopt(self._at.plan)

    def adopt(self, plan: Plan | None) -> None:
        """The plan is another one."""
        at = self._at
        if not at.audit or plan is None:
            return
        self._audits = audits_of(plan, at.node, at.microbatches, at.era, at.version) if not at.rests else []

    def end_era(self) -> None:
        """Nothing of before is left."""
        self._states.clear()
        self._found.clear()

    def forget(self, layer: int) -> None:
        """The layer's state was put in place anew."""
        self._states.pop(layer, None)

    def done(self, work: Check | Audit[V], digest: int | None) -> None:
        """``digest``: None where there is none that another node would have, too."""
        if isinstance(work, Audit):
            if work.step == self._at.version:
                self._found[work.duty, work.microbatch] = digest
        elif digest is not None and self._holdings.version_of(work.layer) == work.version:
            self._states[work.layer] = work.version, digest

    # ---- what is to be done -----------------------------------------------------------------------------------------

    def next(self) -> Check | Audit[V] | None:
        """What can be checked now."""
        at, plan = self._at, self._at.plan
        if not at.audit or plan is None:
            return None
        for duty, m in self._audits:
            if (duty, m) not in self._found and self._holdings.are_at(at.version, plan.stages[duty.stage].layers):
                key = flow.input_of(Instruction(duty, "F", m), len(plan.stages), at.era, at.version)  # no graph's
                operand = self._post.kept(key) if key is not None else None
                if key is None or operand is not None:
                    return Audit(
                        duty=duty,
                        layers=plan.stages[duty.stage].layers,
                        stages=len(plan.stages),
                        step=at.version,
                        microbatch=m,
                        operand=operand,
                    )
        for _, layers in plan.parts_of(at.node):
            for layer in layers:
                if self._holdings.version_of(layer) == at.version and not self._is_checked(layer):
                    return Check(layer, at.version)
        return None

    def _is_checked(self, layer: int) -> bool:
        return layer in self._states and self._states[layer][0] == self._at.version

    def lacks(self, stage: int, layers: range) -> bool:
        """Whether something of this part of a stage is still to be checked."""
        if not self._at.audit:
            return False
        audits = any(duty.stage == stage and (duty, m) not in self._found for duty, m in self._audits)
        return audits or not all(map(self._is_checked, layers))

    # ---- what is told -----------------------------------------------------------------------------------------------

    def states_of(self, layers: range) -> tuple[int, ...]:
        """The digest of each layer's state; nothing where nobody checks."""
        return tuple(self._states[layer][1] for layer in layers) if self._at.audit else ()

    def audited(self, stage: int) -> tuple[Audited, ...]:
        """What was found of the forwards of a stage that this node has run again."""
        found = ((duty, m, digest) for (duty, m), digest in self._found.items() if duty.stage == stage)
        return tuple(_said(duty, m, digest) for duty, m, digest in found if digest is not None)

    def taken(self, stage: int) -> tuple[Audited, ...]:
        """What this node, as an owner of the stage, has taken of the stage before: of each forward that is audited."""
        at, plan = self._at, self._at.plan
        if not at.audit or plan is None:
            return ()
        found = []
        for duty in plan.duties_of(at.node):
            for m in range(at.microbatches if duty.stage == stage else 0):
                before = flow.awaited(Instruction(duty, "F", m), len(plan.stages))
                if before is None or auditor_of(plan, before.duty, m, at.era, at.version) is None:
                    continue
                if (value := self._post.kept(flow.result_of(before, at.era, at.version))) is not None:
                    found.append(_said(before.duty, m, value.digest))
        return tuple(found)


def _said(duty: Duty, microbatch: int, digest: int) -> Audited:
    return Audited(duty.pipeline, duty.stage, microbatch, digest)

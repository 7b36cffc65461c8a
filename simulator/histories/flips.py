"""Bits that flipped in the state of simulated nodes, and which of them no gate could show (rule 25)."""

from dataclasses import dataclass

from culm.coordinator.commands import Commit
from culm.pipeline.plan import Plan
from culm.simulator.histories.world import Node

# A flip is due at the first gate for which the node takes the digest of that layer after it:
#
#     digest of version 3        flip             gate of step 3        digest of version 4       gate of step 4: due
#
# If the gate finds it an era ends. If a step that is due is committed, either another holder of the same state was
# there, which ``invariants.check_gate`` refuses, or nobody was left to compare with: the node had gone, it was alone,
# or all others had their copies from it. Then the weights at the end prove nothing.


@dataclass(frozen=True, slots=True)
class Flip:
    """One of them."""

    node: str
    incarnation: int
    layer: int
    era: int
    due: int  # the step

    def __str__(self) -> str:
        return f"layer {self.layer} of {self.node}, due in step {self.due}"


class Flips:
    """Of one history."""

    def __init__(self) -> None:
        self._open: list[Flip] = []
        self.unseen: list[Flip] = []  # that no gate could show

    def happens(self, node: Node, layer: int, bit: int) -> None:
        """A bit of the layer's state changes on the node."""
        arithmetic = node.arithmetic
        arithmetic.flip(layer, bit)
        version = arithmetic.versions[layer]
        due = version + 1 if arithmetic.late.get(layer) == version else version
        self._open.append(Flip(node.name, node.incarnation, layer, node.worker.era, due))

    def committed(self, plan: Plan, commit: Commit) -> None:
        """``plan``: of the step that is committed."""
        due = [flip for flip in self._open if flip.era == commit.era and flip.due <= commit.step]
        for flip in due:
            member = plan.members.get(flip.node)
            there = member is not None and member.incarnation == flip.incarnation
            if there and not any(flip.node in s.required() for s in plan.stages if flip.layer in s.layers):
                continue  # nobody waits for this copy so far
            self._open.remove(flip)
            self.unseen.append(flip)

"""What simulated machines got wrong, bits of their state and forwards, and what of it no gate could show (rule 25)."""

from collections.abc import Container
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
#
# A wrong forward is due at the gate of its step, if every forward is audited. Nobody can find it where a stage has one
# copy left by then: the only other holder was lost within the step.


@dataclass(frozen=True, slots=True)
class Flip:
    """A bit that flipped."""

    node: str
    incarnation: int
    layer: int
    era: int
    due: int  # the step

    def __str__(self) -> str:
        return f"layer {self.layer} of {self.node}, due in step {self.due}"


class Mistakes:
    """Of one history."""

    def __init__(self) -> None:
        self._open: list[Flip] = []
        self._forwards: set[tuple[int, int]] = set()  # era and step of those that went wrong
        self.unseen: list[Flip | tuple[int, int]] = []  # what no gate could show: flips, and forwards' eras and steps

    def flip(self, node: Node, layer: int, bit: int) -> None:
        """A bit of the layer's state changes on the node."""
        arithmetic = node.arithmetic
        arithmetic.flip(layer, bit)
        version = arithmetic.versions[layer]
        due = version + 1 if arithmetic.late.get(layer) == version else version
        self._open.append(Flip(node.name, node.incarnation, layer, node.worker.era, due))

    def forward(self, node: Node) -> None:
        """A forward of the node's running step goes wrong."""
        self._forwards.add((node.worker.era, node.worker.version))

    def committed(self, plan: Plan, commit: Commit, there: Container[str]) -> None:
        """``plan``: of the step that is committed; ``there``: the nodes that are not lost."""
        forward = (commit.era, commit.step)
        if forward in self._forwards and any(
            sum(name in there for name in stage.required()) == 1 for stage in plan.stages
        ):
            self.unseen.append(forward)
        due = [flip for flip in self._open if flip.era == commit.era and flip.due <= commit.step]
        for flip in due:
            member = plan.members.get(flip.node)
            same = member is not None and member.incarnation == flip.incarnation
            if same and not any(flip.node in s.required() for s in plan.stages if flip.layer in s.layers):
                continue  # nobody waits for this copy so far
            self._open.remove(flip)
            self.unseen.append(flip)

"""What simulated machines got wrong, bits of their state and forwards, and what of it no gate could show (rule 25)."""

from collections.abc import Container
from dataclasses import dataclass

from culm.coordinator.commands import Commit
from culm.coordinator.state import State
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
# copy left by then: the only other holder was lost within the step. Nor where the stage's owner was lost in the step:
# it and its heir may both have run the forward, and one's output is compared while the other's gradient counts.


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
        self._forwards: set[tuple[int, int, int]] = set()  # era, step and stage of those that went wrong
        self.unseen: list[Flip | tuple[int, int, int]] = []  # what no gate could show

    def flip(self, node: Node, layer: int, bit: int) -> None:
        """A bit of the layer's state changes on the node."""
        arithmetic = node.arithmetic
        arithmetic.flip(layer, bit)
        version = arithmetic.versions[layer]
        due = version + 1 if arithmetic.late.get(layer) == version else version
        self._open.append(Flip(node.name, node.incarnation, layer, node.worker.era, due))

    def forward(self, node: Node, stage: int) -> None:
        """A forward of the node's running step goes wrong."""
        self._forwards.add((node.worker.era, node.worker.version, stage))

    def committed(self, before: State, commit: Commit, there: Container[str]) -> None:
        """``before``: as it was before the decision to commit; ``there``: the nodes that are not lost since."""
        plan = before.plan
        if plan is None:
            return
        moved = {lost.stage for lost in before.lost_owners}
        moved |= {s for s, stage in enumerate(plan.stages) if any(name not in there for name in stage.owners)}
        alone = any(sum(name in there for name in stage.required()) == 1 for stage in plan.stages)
        wrong = [x for x in self._forwards if x[:2] == (commit.era, commit.step)]
        self.unseen += [x for x in wrong if alone or x[2] in moved]
        due = [flip for flip in self._open if flip.era == commit.era and flip.due <= commit.step]
        for flip in due:
            member = plan.members.get(flip.node)
            same = member is not None and member.incarnation == flip.incarnation
            if same and not any(flip.node in s.required() for s in plan.stages if flip.layer in s.layers):
                continue  # nobody waits for this copy so far
            self._open.remove(flip)
            self.unseen.append(flip)

"""What a node knows of the stages that it took over within the running step (rule 9)."""

from collections.abc import Collection, Iterable, Sequence

from culm.pipeline.plan import PlanOrder
from culm.pipeline.schedule import Instruction


class Heir:
    """Forgotten with the step's commit: from then on it is an owner like any other."""

    def __init__(self) -> None:
        self._since: dict[int, PlanOrder] = {}  # stage -> by which plan
        self._known: set[Instruction] = set()  # whose result a consumer held already
        self._synced: dict[str, PlanOrder] = {}  # peer -> under which plan it has told all that it holds
        self._resumed: set[int] = set()

    def __contains__(self, stage: int) -> bool:
        return stage in self._since

    def inherit(self, stage: int, order: PlanOrder) -> None:
        self._since[stage] = order

    def give_up(self, stage: int) -> None:
        self._since.pop(stage, None)

    def held_elsewhere(self, instruction: Instruction) -> None:
        """The lost owner got as far as this: a consumer holds the result."""
        self._known.add(instruction)

    def synced(self, peer: str, order: PlanOrder) -> None:
        self._synced[peer] = order

    def has_heard(self, stage: int, peers: Iterable[str]) -> bool:
        """Whether all of these have told what they hold since the stage was taken over."""
        return all(self._synced.get(peer, (0, 0)) >= self._since[stage] for peer in peers)

    def resumes(self, stage: int) -> int | None:
        """The generation of the plan by which the stage came here, the first time that it is worked on; else None."""
        if stage not in self._since or stage in self._resumed:
            return None
        self._resumed.add(stage)
        return self._since[stage][1]

    def redone(self, stage: int, order: Sequence[Instruction], done: Collection[Instruction]) -> int:
        """How many instructions ran here though the lost owner had finished them: all up to its last known result."""
        if stage not in self._since:
            return 0
        last = max((i for i, x in enumerate(order) if x in self._known), default=-1)
        return sum(x in done for x in order[: last + 1])

    def forget(self) -> None:
        self._since.clear()
        self._known.clear()
        self._resumed.clear()


def needed_for(lacking: Sequence[Instruction], each_alone: bool = False) -> set[Instruction]:
    """What is to be run so that these results exist again, of microbatches whose parameter gradients are already here.

    ``each_alone``: the stage's forwards change no buffers.
    """
    # Forwards change buffers, so those before a needed one are run too; a backward needs its forward's graph.
    needed = {i.microbatch for i in lacking}
    forwards = needed if each_alone else set(range(max(needed, default=-1) + 1))
    return {Instruction(i.stage, "F", m) for i in lacking[:1] for m in forwards} | {i for i in lacking if i.op == "B"}

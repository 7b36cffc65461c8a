"""Machines that compute wrongly and say nothing: bits that flip in memory, forwards that go wrong (rule 25)."""

import random
from collections.abc import Callable

from culm.simulator.histories.arithmetic import PRIME
from culm.simulator.histories.world import Node, World

# A flip changes one layer's state on one node, between two pieces of work. A wrong forward gives another number, in the
# node's own work or while it audits. A faulty machine gives one again and again, whatever process runs there.
#
# After the last gate but one no state flips: what happens behind the last one nobody compares.
#
# Left right: backwards, sums, the optimizer's step, and buffers. What goes wrong there alike on all holders, or before
# it is shared, no audit of forwards sees.


class WrongMachines:
    """``flips`` and ``forwards``: how many, each at a random moment. A generator of its own draws them."""

    def __init__(self, world: World, flips: int = 0, forwards: int = 0, faulty: str = "", share: float = 1.0) -> None:
        """``faulty``: a node whose forwards go wrong with the probability ``share``."""
        self._world = world
        self._random = random.Random(f"wrong {world.seed}")
        self._faulty, self._share = faulty, share
        self.done: list[str] = []  # what went wrong, in words
        for count, happening in ((flips, self._flip), (forwards, self._next_forward)):
            moment = 0.05
            for _ in range(count):
                moment += self._random.choice([0.03, 0.3, 3.0]) * self._random.random()
                world.clock.at(moment, happening)
        if faulty:
            world.clock.at(0.0, self._keep_faulty)

    def _living(self) -> list[Node]:
        return [node for node in self._world.nodes.values() if node.alive and node.arithmetic.states]

    def _flip(self) -> None:
        living = [node for node in self._living() if node.worker.version < self._world.end - 1]
        if not living:
            return
        node = self._random.choice(living)
        layer = self._random.choice(sorted(node.arithmetic.states))
        self._world.mistakes.flip(node, layer, self._random.randrange(20))
        self.done.append(f"layer {layer} of {node.name} at step {node.worker.version}")

    def _next_forward(self) -> None:
        living = self._living()
        if living:
            node = self._random.choice(living)
            node.arithmetic.error = self._once(node)

    def _once(self, node: Node) -> Callable[[int], int]:
        def error(stage: int) -> int:
            node.arithmetic.error = lambda stage: 0
            self._world.mistakes.forward(node, stage)
            self.done.append(f"a forward of {node.name} in step {node.worker.version}")
            return self._random.randrange(1, PRIME)

        return error

    def _keep_faulty(self) -> None:
        """Of whatever process runs there by now."""
        node = self._world.nodes.get(self._faulty)
        if node is not None:
            node.arithmetic.error = self._now_and_then
        self._world.clock.after(0.01, self._keep_faulty)

    def _now_and_then(self, stage: int) -> int:
        return self._random.randrange(1, PRIME) if self._random.random() < self._share else 0

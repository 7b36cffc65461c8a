"""Histories in which acknowledgements wait for one another, as a real receiver's do (``stage_server/streams/answers``).

Elsewhere each of them leaves at once. Then hardly a tensor is on record as unacknowledged when a node is lost, or a
stream opened again.
"""

from functools import partial
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.pipeline.keys import Key
from culm.simulator.histories import simulated_node
from culm.simulator.histories.simulated_streams import SimulatedStreams
from culm.simulator.histories.world import Node, World
from culm.stage_server.streams.answers import AFTERWARDS, MANY
from culm.stage_server.worker.effects import AnswerHello
from tests.simulation.test_everything import SOAK, history_of_everything
from tests.simulation.test_features_together import history_of_features, history_of_features_on_a_graph
from tests.simulation.test_grid import history_of_the_grid


class LateStreams(SimulatedStreams):
    """An instruction takes 10 ms here, an acknowledgement waits for 200: for several steps of a small job."""

    def __init__(self, world: World, node: Node) -> None:
        super().__init__(world, node)
        self._waiting: dict[tuple[str, int], list[Key]] = {}  # by the peer and its incarnation

    def answer(self, peer: str, answer: Key | AnswerHello) -> None:
        sender = self._world.nodes.get(peer)
        if sender is None:
            return
        to = (peer, sender.incarnation)
        waiting = self._waiting.setdefault(to, [])
        if isinstance(answer, AnswerHello):
            self._send_waiting(to)
            super().answer(peer, answer)
            return
        waiting.append(answer)
        if len(waiting) == 1:
            self._world.clock.after(AFTERWARDS, partial(self._send_waiting, to))
        elif len(waiting) >= MANY:
            self._send_waiting(to)

    def _send_waiting(self, to: tuple[str, int]) -> None:
        """All that wait; an acknowledgement ends with its sender, and with the incarnation that it is for."""
        waiting = self._waiting.pop(to, [])
        sender = self._world.nodes.get(to[0])
        if self._node.alive and sender is not None and sender.incarnation == to[1]:
            for key in waiting:
                super().answer(to[0], key)


@pytest.fixture
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_node, "SimulatedStreams", LateStreams)


HISTORIES = [history_of_everything, history_of_the_grid, history_of_features, history_of_features_on_a_graph]


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_however_late_acknowledgements_come_the_history_ends_exact(fifty: int, history: Any) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 6)):
        cluster = history(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"

"""Random histories in which every node writes to disk whatever nobody needs at present: the same bits."""

import os
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.pipeline.keys import Key
from culm.simulator.histories.arithmetic import Number
from culm.stage_server.worker.outbox import Outbox
from culm.stage_server.worker.worker import Worker
from tests.simulation.test_everything import history_of_everything
from tests.simulation.test_grid import history_of_the_grid

SOAK = os.environ.get("CULM_SOAK") == "1"
SPILLED: list[Key] = []


class Counting(Outbox[Number]):
    def exchange(self, key: Key, value: Number, same: Number) -> None:
        super().exchange(key, value, same)
        if self.get(key) is same:
            SPILLED.append(key)


class Spilling(Worker[Number]):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.post.outbox = Counting(self.node)


class PutsBack(Outbox[Number]):
    def exchange(self, key: Key, value: Number, same: Number) -> None:
        self._values[key] = same


class WithoutLooking(Worker[Number]):
    """What was written is put into the box whether or not the box still has the tensor."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.post.outbox = PutsBack(self.node)


@pytest.mark.parametrize("history", [history_of_everything, history_of_the_grid])
@pytest.mark.parametrize("ten", range(30 if SOAK else 1))
def test_what_lies_on_disk_changes_no_bit(history: Any, ten: int) -> None:
    SPILLED.clear()
    for seed in range(ten * 10, ten * 10 + 10):
        cluster = history(seed, spills=True, make_worker=Spilling).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
    # Of what the same histories find each time: in others it may be fewer by chance.
    assert ten > 0 or len(SPILLED) > 100, "hardly anything went to disk"


def test_a_leader_that_has_heard_nothing_from_a_node_sends_it_no_plan() -> None:
    # A leader from an old store gave a node of step 5 its plan of step 0, by which the node was to hold another layer.
    history_of_the_grid(1066, spills=True).run()


def test_what_a_box_has_forgotten_does_not_come_back() -> None:
    with pytest.raises(AssertionError, match="keeps"):
        history_of_everything(1, spills=True, make_worker=WithoutLooking).run()
    history_of_everything(1, spills=True).run()

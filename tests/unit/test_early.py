"""What waits in ``early`` is bounded, however often a peer sends it."""

from culm.pipeline.keys import ACTIVATION, Key
from culm.simulator.histories.arithmetic import Number
from culm.stage_server.worker.early import Arrival, Early

ORDER = (1, 3)


def arrival(step: int) -> Arrival[Number]:
    return Arrival("n0", 1, ORDER, Key(0, step, 0, ACTIVATION, 0, 0), Number(step))


def test_a_tensor_of_a_later_step_that_comes_again_waits_once() -> None:
    early: Early[Number] = Early()
    for _ in range(100):
        for step in (7, 8):
            early.add_of_later_step(arrival(step), Key(0, step, 0, ACTIVATION, 0, 0))
    assert [x.value for x in early.waiting()] == [Number(7), Number(8)]
    early.add_of_later_step(arrival(9), Key(0, 9, 0, ACTIVATION, 0, 0))
    assert [x.value for x in early.waiting()] == [Number(8), Number(9)], "of the steps only the newest two stay"


def test_an_older_hello_that_comes_late_does_not_take_the_place_of_a_newer_one() -> None:
    """It came on a stream that its sender had given up: the answer to it counted for nobody, and no other came."""
    early: Early[Number] = Early()
    for incarnation, order in ((1, (1, 3)), (1, (1, 5)), (1, (1, 4)), (1, (1, 5)), (2, (1, 4)), (1, (1, 6))):
        early.add(Arrival("n0", incarnation, order))
    assert [(x.incarnation, x.order) for x in early.waiting()] == [(2, (1, 4))]

"""Steps, lost nodes, joins and drains, as the coordinator decides them: transcripts that read as prose.

Accept a change on purpose with ``pytest tests/scenarios --rewrite``.
"""

import pytest

from culm.coordinator import reports
from culm.pipeline.evaluations import Evaluations
from tests.scenarios.coordinator_play import CoordinatorPlay, check_transcript, three_nodes


def calm_step() -> CoordinatorPlay:
    play = three_nodes()
    play.wait(0.1)
    play.ready("n0", "n1", "n2")
    return play


def lost_and_back() -> CoordinatorPlay:
    play = three_nodes()
    play.wait(0.1)
    play.lose("n1", "n2")
    play.wait(0.1)
    play.ready("n0", "n2")
    play.join("n1")
    play.wait(0.1)
    play.ready("n0", "n2")
    play.wait(0.1)
    play.ready("n1", "n0", "n2")
    return play


def lost_between_ready_and_commit() -> CoordinatorPlay:
    play = three_nodes()
    play.wait(0.1)
    play.ready("n1", "n2")
    play.lose("n1", "n2")
    play.ready("n0")
    return play


def a_standby_that_is_seeded_is_always_late() -> CoordinatorPlay:
    """Nobody waits for it until it has caught up; then the next commit does."""
    play = three_nodes()
    play.wait(0.1)
    play.join("n3")
    play.lose("n1", "n2")
    play.ready("n0", "n2")
    play.ready("n3", step=0)
    play.ready("n0", "n2")
    play.ready("n3")
    return play


def frozen_node() -> CoordinatorPlay:
    play = three_nodes()
    for _ in range(3):
        play.wait(0.8)
        play.beat("n0", "n1")
        play.tick()
    play.report("n2 wakes up", reports.Joined(node="n2", incarnation=1, address="n2:1"))
    return play


def coordinator_stood_still() -> CoordinatorPlay:
    play = three_nodes()
    play.tick()
    play.wait(60.0)
    play.tick()
    return play


def drained_node() -> CoordinatorPlay:
    play = three_nodes()
    play.join("n3")
    play.wait(0.1)
    play.report("n1 is given notice", reports.Draining("n1", "its machine is to go", 120.0))
    play.ready("n0", "n1", "n2")
    play.wait(0.1)
    play.ready("n0", "n1", "n2", "n3")
    return play


def machine_that_goes_sooner() -> CoordinatorPlay:
    """Its cloud puts the end off, and then moves it nearer: it goes in time, though its successor is not hot yet."""
    play = three_nodes(steps=8)
    play.join("n3")
    play.report("n1 is given notice", reports.Draining("n1", "its machine is to go", 120.0))
    play.wait(1.0)
    play.report("n1 repeats it on a new stream", reports.Draining("n1", "its machine is to go", 119.0))
    play.report("n1's cloud puts it off", reports.Draining("n1", "its machine is to go", 300.0))
    play.ready("n0", "n1", "n2")
    play.report("n1's cloud moves it nearer", reports.Draining("n1", "its machine is to go", 6.0))
    for _ in range(2):
        play.wait(1.5)
        play.ready(*(name for name in play.nodes() if name != "n3"))
    return play


def warned_node() -> CoordinatorPlay:
    """It works on until somebody joins that can take its place, and is the last choice afterwards."""
    play = three_nodes(steps=8)
    play.report("n1 is warned", reports.Warned("n1", "its cloud recommends a rebalance"))
    play.ready("n0", "n1", "n2")
    play.join("n3")
    for _ in range(5):
        play.wait(0.1)
        play.ready(*play.nodes())
    return play


def zone_that_vanishes() -> CoordinatorPlay:
    """Both of its nodes at once: every stage goes on in the other zone, and moves apart again when they are back."""
    play = CoordinatorPlay(stages=4, nodes=4, steps=20)
    for node, zone in (("n0", "a"), ("n1", "a"), ("n2", "b"), ("n3", "b")):
        play.join(node, zone)
    play.lose("n0", "n2")
    play.lose("n1", "n2")
    play.ready("n2", "n3")
    play.join("n0", "a")
    play.join("n1", "a")
    for _ in range(8):
        play.wait(0.1)
        play.ready(*play.nodes())
    return play


def both_copies_lost() -> CoordinatorPlay:
    play = three_nodes()
    play.wait(0.1)
    play.ready("n0", "n1", "n2")
    play.lose("n1", "n2")
    play.lose("n0", "n2")
    play.join("n0")
    return play


def done_and_then_lost() -> CoordinatorPlay:
    """After the last commit redundancy is repaired as before it, until the weights were fetched (rule 17)."""
    play = CoordinatorPlay(stages=2, nodes=3, steps=1)
    for node in ("n0", "n1", "n2"):
        play.join(node)
    play.now = 0.5
    play.ready(*play.nodes())
    for at, lost, reporter in ((1.0, "n0", "n1"), (2.0, "n1", "n2")):
        play.now = at
        play.lose(lost, reporter)
        play.caught_up()
    play.now = 3.0
    play.report("somebody has fetched the weights", reports.Fetched("culm weights wrote model.safetensors on laptop"))
    play.report("n1 joins", reports.Joined(node="n1", incarnation=9, address="n1:1"))
    return play


def evaluations_that_become_no_better() -> CoordinatorPlay:
    """The first one ends the run. It is lost, begins again at step 0, and comes to the same end."""
    evaluations = Evaluations(every=1, samples=1)
    play = CoordinatorPlay(stages=2, nodes=2, steps=9, evaluations=evaluations, worse_allowed=1)
    for node in ("n0", "n1"):
        play.join(node)
    for loss in (None, 0.5, 0.4, 0.4):
        play.wait(0.1)
        play.ready("n0", "n1", evaluated=loss)
    play.lose("n1", "n0")
    play.lose("n0", "n1")
    for node in ("n0", "n1"):
        play.join(node)
    for loss in (None, 0.5, 0.4, 0.4):
        play.wait(0.1)
        play.ready("n0", "n1", evaluated=loss)
    return play


def every_node_is_told_to_stop() -> CoordinatorPlay:
    """Nobody is left to hand over to: without a checkpoint they go at once."""
    play = CoordinatorPlay(stages=2, nodes=2)
    for node in ("n0", "n1"):
        play.join(node)
    play.now = 0.5
    for node in ("n0", "n1"):
        told = reports.Draining(node, "it was told to stop", 25.0, told=True)
        play.report(f"{node} is told to stop", told)
    return play


def cut_by_measured_times() -> CoordinatorPlay:
    """Nodes tell different times; one that joins later and another era change nothing of the cut."""
    play = CoordinatorPlay(measured=True)
    play.join("n0", seconds=(0.001, 0.1, 0.1, 0.1, 0.1, 0.2))
    play.join("n1", seconds=(0.002, 0.2, 0.2, 0.2, 0.1, 0.2))
    play.join("n2", seconds=(0.001, 0.1, 0.1, 0.1, 0.1, 9.0))
    play.wait(0.1)
    play.lose("n1", "n2")
    play.join("n3", seconds=(9.0, 0.1, 0.1, 0.1, 0.1, 0.1))
    play.lose("n0", "n2")
    play.join("n1")
    play.tick()
    return play


def times_that_nobody_could_measure() -> CoordinatorPlay:
    """The parameters decide, and the plan says why."""
    play = CoordinatorPlay(measured=True)
    for node in ("n0", "n1", "n2"):
        play.join(node, unmeasured="layer 3 (Linear) raised RuntimeError: out of memory")
    return play


SCENARIOS = {
    f.__name__: f
    for f in (
        calm_step,
        lost_and_back,
        lost_between_ready_and_commit,
        a_standby_that_is_seeded_is_always_late,
        frozen_node,
        coordinator_stood_still,
        drained_node,
        machine_that_goes_sooner,
        warned_node,
        zone_that_vanishes,
        both_copies_lost,
        done_and_then_lost,
        evaluations_that_become_no_better,
        every_node_is_told_to_stop,
        cut_by_measured_times,
        times_that_nobody_could_measure,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_transcript(name: str, request: pytest.FixtureRequest) -> None:
    check_transcript(name, SCENARIOS[name](), request.config.getoption("--rewrite"))

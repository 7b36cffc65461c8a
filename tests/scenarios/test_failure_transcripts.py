"""Whose fault it is, as the coordinator decides: what raises, is stuck, stalls or dies; transcripts that read as prose.

Accept a change on purpose with ``pytest tests/scenarios --rewrite``.
"""

import pytest

from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.coordinator.failures import DEATHS, START, Failures, Work, committed, died
from tests.scenarios.coordinator_play import CoordinatorPlay, check_transcript, three_nodes


def raises(play: CoordinatorPlay, node: str, why: str, work: Work | None) -> None:
    doing = f"at {work}" if work is not None else "on a thread of its own"
    play.report(f"{node} fails {doing}", reports.NodeFailed(node, play.incarnations[node], why, work))


def stuck_node() -> CoordinatorPlay:
    play = three_nodes()
    for seconds in (0.5, 1.5, 2.5):
        play.wait(1.0)
        play.beat("n0", "n1")
        stuck = reports.Heartbeat(
            node="n2",
            incarnation=1,
            version=0,
            instruction="2B1",
            finished=40,
            running_seconds=seconds,
            median_seconds=0.02,
            deviation_seconds=0.001,
            samples=40,
        )
        play.report(f"n2 says that 2B1 has been running for {seconds} s", stuck)
        play.tick()
    return play


def run_that_stands_still() -> CoordinatorPlay:
    """A node attends, beats and does no work: no detector has evidence against it, and steps do not come."""
    play = three_nodes(steps=8)
    for _ in range(4):
        play.wait(0.5)
        play.ready("n0", "n1", "n2")
        play.tick()
    play.lines = play.lines[-2:]
    play.ready("n0", "n1")
    for _ in range(20):
        play.wait(0.5)
        play.beat("n0", "n1", "n2")
        state, commands = advance(play.state, reports.Tick(), play.now)
        if commands:
            play.tick()
        play.state = state
    play.ready("n2")
    play.wait(0.5)
    play.tick()
    return play


def slow_start() -> CoordinatorPlay:
    """Without a history nothing is stuck: the first instruction of all may take its time."""
    play = three_nodes()
    for seconds in (1.0, 3.0, 9.0):
        play.wait(1.0)
        play.beat("n0", "n1")
        play.report(
            f"n2 says that 2F0 has been running for {seconds} s",
            reports.Heartbeat(
                node="n2", incarnation=1, version=0, instruction="2F0", finished=0, running_seconds=seconds
            ),
        )
        play.tick()
    return play


def other_code() -> CoordinatorPlay:
    play = CoordinatorPlay()
    play.join("n0")
    play.state, _ = advance(
        play.state,
        reports.Available(node="n0", incarnation=1, layer_costs=(1.0,) * 6, fingerprint="0123456789abcdef"),
        play.now,
    )
    play.incarnations["n1"] = 1
    play.report("n1 joins", reports.Joined(node="n1", incarnation=1, address="n1:1"))
    play.report(
        "n1 is available with other code",
        reports.Available(node="n1", incarnation=1, layer_costs=(1.0,) * 6, fingerprint="fedcba9876543210"),
    )
    return play


def too_few_layers() -> CoordinatorPlay:
    play = CoordinatorPlay(stages=3)
    play.report("n0 joins", reports.Joined(node="n0", incarnation=1, address="n0:1"))
    play.report("n0 is available with two layers", reports.Available(node="n0", incarnation=1, layer_costs=(1.0, 1.0)))
    return play


def spare_that_does_not_start() -> CoordinatorPlay:
    """Again and again, since something starts it again: it is told of ever more seldom."""
    play = three_nodes()
    for i in range(5):
        play.wait(1.0)
        play.beat("n0", "n1", "n2")
        play.report("n3's process starts", reports.Joined(node="n3", incarnation=1 + i, address="n3:1"))
        play.report("the job does not start there", reports.NodeFailed("n3", 1 + i, "ImportError: no cuda", START))
    return play


def job_that_does_not_start() -> CoordinatorPlay:
    play = CoordinatorPlay()
    for node in ("n0", "n1"):
        play.report(f"{node}'s process starts", reports.Joined(node=node, incarnation=1, address=f"{node}:1"))
    for node in ("n0", "n1"):
        play.report(f"the job does not start on {node}", reports.NodeFailed(node, 1, "ImportError: no model", START))
    return play


def threads_that_break_before_their_nodes_take_part() -> CoordinatorPlay:
    """The run waits for one node, so one start that raises would end it. But it was not the start that raised."""
    play = CoordinatorPlay(stages=1, nodes=1)
    for incarnation in (1, 2):
        play.report("n0's process starts", reports.Joined(node="n0", incarnation=incarnation, address="n0:1"))
        play.report("a thread of its own raises", reports.NodeFailed("n0", incarnation, "its disk is full"))
    return play


def work_that_raises_on_one_node() -> CoordinatorPlay:
    play = three_nodes()
    play.wait(0.1)
    raises(play, "n1", "RuntimeError: CUDA error", Work("F1", 0, 2, 4))
    play.ready("n0", "n2")
    raises(play, "n2", "RuntimeError: CUDA error", Work("F1", 1, 4, 6))
    return play


def work_that_raises_on_two_nodes() -> CoordinatorPlay:
    play = three_nodes()
    play.wait(0.1)
    raises(play, "n1", "ValueError: out of luck", Work("F1", 0, 2, 4))
    raises(play, "n0", "ValueError: out of luck", Work("F1", 0, 2, 4))
    return play


def thread_that_breaks() -> CoordinatorPlay:
    play = three_nodes()
    raises(play, "n1", "the thread orders raised KeyError: 3", None)
    return play


def node_that_cannot_die() -> CoordinatorPlay:
    """It does not work any more, but its heartbeats come."""
    play = three_nodes()
    play.report("n1 is ordered to die", reports.Condemned("n1", 1))
    for _ in range(3):
        play.wait(0.8)
        play.beat("n0", "n1", "n2")
        play.tick()
    return play


def storage_that_stalls() -> CoordinatorPlay:
    """One that loads is no stuck one, and is lost only long after, and only if no other waits for storage as well."""
    play = three_nodes()
    for seconds in (3.0, 30.0, 61.0):
        play.wait(1.0)
        play.beat("n1")
        for node in ("n0", "n2"):
            said = reports.Heartbeat(
                node=node,
                incarnation=1,
                version=0,
                instruction="0F1",
                finished=40,
                running_seconds=0.0,
                median_seconds=0.02,
                deviation_seconds=0.001,
                samples=40,
                loading_seconds=seconds,
            )
            play.report(f"{node} says that it has been loading for {seconds} s", said)
        play.tick()
    play.beat("n0", "n1")
    play.tick()
    return play


def deaths_at_the_same_work() -> CoordinatorPlay:
    """Whatever runs the middle stage dies without a word: in the end that is the job's fault."""
    play = three_nodes(steps=2)
    for _ in range(8):
        plan = play.state.plan
        if plan is None or play.state.phase is co.Phase.FAILED:
            break
        node = plan.stages[1].owner
        reporter = next(n for n in play.state.nodes if n != node)
        play.wait(0.1)
        play.beat(node)
        play.lose(node, reporter)
        play.join(node)
    return play


SCENARIOS = {
    f.__name__: f
    for f in (
        stuck_node,
        run_that_stands_still,
        slow_start,
        other_code,
        too_few_layers,
        spare_that_does_not_start,
        job_that_does_not_start,
        threads_that_break_before_their_nodes_take_part,
        work_that_raises_on_one_node,
        work_that_raises_on_two_nodes,
        thread_that_breaks,
        node_that_cannot_die,
        storage_that_stalls,
        deaths_at_the_same_work,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_transcript(name: str, request: pytest.FixtureRequest) -> None:
    check_transcript(name, SCENARIOS[name](), request.config.getoption("--rewrite"))


def test_owners_that_had_ended_before_they_got_the_work_never_fail_the_run() -> None:
    """All were taken at once, and are found lost one after the other: a power cut, or a bulk."""
    play = three_nodes(steps=2)
    for _ in range(2 * DEATHS):
        if play.state.plan is None:
            break
        node = play.state.plan.stages[1].owner
        play.lose(node, next(n for n in play.state.nodes if n != node))
        play.join(node)
    assert play.state.phase is not co.Phase.FAILED
    assert {deaths.count for deaths in play.state.failures.deaths.values()} == {1}


def test_deaths_count_by_pipeline_and_one_after_the_other() -> None:
    """Owners of one stage that go within a step had each its own pipelines. Those of one pipeline are its heirs."""
    failures = Failures()
    for i in range(2 * DEATHS):
        failures = died(failures, [Work("", 3, 0, 2, pipeline=i)], f"n{i}", alive_at=i + 0.5, now=i + 1.0)
    assert {deaths.count for deaths in failures.deaths.values()} == {1}
    for alive_at, count in ((1.0, 1), (1.5, 2)):  # it was found lost at 1.0
        both = died(failures, [Work("", 3, 1, 4, pipeline=0)], "heir", alive_at=alive_at, now=20.0)
        assert both.deaths[Work("", 3, 0, 2, pipeline=0)].count == count
    assert not committed(failures, 3).deaths


def test_an_heir_that_began_counts_though_no_heartbeat_came_since() -> None:
    play = three_nodes(steps=2)
    for node, reporter in (("n1", "n0"), ("n0", "n2")):
        play.wait(0.1)
        if node == "n0":
            play.report("n0 resumes stage 1", reports.Resumed(node, play.incarnations[node], 1, 1))
        play.lose(node, reporter)
    both = [deaths.by_machine for deaths in play.state.failures.deaths.values() if deaths.count == 2]
    assert both == [{"n1": 1, "n0": 1}]


def test_owners_that_say_that_they_leave_never_fail_the_run() -> None:
    """They had started before the dataset was there: each one joins anew to tell which samples it finds."""
    play = three_nodes(steps=2)
    for _ in range(2 * DEATHS):
        assert play.state.plan is not None
        node = play.state.plan.stages[1].owner
        play.wait(0.1)
        play.report(f"{node} leaves", reports.Left(node, play.incarnations[node], "its process joins anew"))
        play.join(node)
    assert play.state.phase is co.Phase.RUNNING

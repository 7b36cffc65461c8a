"""What the coordinator does about links that break while both ends attend: transcripts that read as prose.

Accept a change on purpose with ``pytest tests/scenarios --rewrite``.
"""

from dataclasses import replace

import pytest

from culm.coordinator import reports
from culm.coordinator.decide import advance
from tests.scenarios.coordinator_play import CoordinatorPlay, check_transcript, four_nodes, three_nodes


def link_fault() -> CoordinatorPlay:
    play = three_nodes()
    play.report("n0 misses n1", reports.PeerLost("n0", 1, "n1", 1, "the stream broke"))
    play.wait(0.5)
    play.beat("n0", "n1", "n2")
    play.tick()
    return play


def link_that_does_not_mend() -> CoordinatorPlay:
    """Both ends attend; the spare end of the broken link goes, since that costs nothing."""
    play = three_nodes()
    play.join("n3")
    for _ in range(8):
        play.state, _commands = advance(play.state, reports.PeerLost("n2", 1, "n3", 1, "no connection"), play.now)
        play.wait(0.8)
        play.beat("n0", "n1", "n2", "n3")
        play.tick()
    return play


def link_that_stays_broken() -> CoordinatorPlay:
    """One end goes, and is no standby again while the link is not to be trusted."""
    play = four_nodes()
    play.estranged(6.0, ("n0", "n1"), ("n1", "n0"))
    play.join("n1")
    play.ready("n0", "n2")
    play.ready("n3", "n0", "n2")
    play.estranged(60.0)
    play.ready("n0", "n2", "n3")
    return play


def link_that_breaks_now_and_then() -> CoordinatorPlay:
    play = three_nodes()
    for _ in range(3):
        play.estranged(4.0, ("n0", "n1"), ("n1", "n0"))
        play.estranged(3.0)
    return play


def link_that_breaks_while_steps_commit() -> CoordinatorPlay:
    """A commit shows that its tensors have passed."""
    play = three_nodes()
    for _ in range(3):
        play.estranged(3.0, ("n0", "n1"), ("n1", "n0"))
        play.ready("n0", "n1", "n2")
    return play


def link_to_a_node_that_several_miss() -> CoordinatorPlay:
    play = three_nodes()
    play.estranged(6.0, ("n1", "n0"), ("n0", "n1"), ("n2", "n0"))
    return play


def link_to_a_standby_that_is_seeded() -> CoordinatorPlay:
    """Less depends on it than on an owner."""
    play = four_nodes()
    play.lose("n1", "n2")
    play.estranged(6.0, ("n0", "n3"))
    return play


def link_between_two_only_copies() -> CoordinatorPlay:
    """To do without either is to begin again: the link is waited for, but not for ever."""
    play = CoordinatorPlay(stages=2, nodes=2, copies=1)
    play.join("n0")
    play.join("n1")
    play.estranged(20.0, ("n0", "n1"), ("n1", "n0"))
    play.ready("n0", "n1")
    play.estranged(32.0, ("n0", "n1"), ("n1", "n0"))
    return play


def link_between_two_only_copies_after_the_last_commit() -> CoordinatorPlay:
    """Each is to be seeded by the other. Nobody goes, and others are seeded in their places."""
    play = CoordinatorPlay(stages=2, nodes=4, steps=1)
    for node in ("n0", "n1", "n2", "n3"):
        play.join(node)
    play.ready("n0", "n1")
    plan = play.state.plan
    assert plan is not None
    unseeded = tuple(replace(x, standbys=tuple(replace(b, hot=False) for b in x.standbys)) for x in plan.stages)
    play.state = replace(play.state, plan=replace(plan, stages=unseeded))
    play.estranged(7.0, ("n0", "n1"), ("n1", "n0"))
    play.caught_up()
    play.estranged(7.0, ("n0", "n1"), ("n1", "n0"))
    return play


SCENARIOS = {
    f.__name__: f
    for f in (
        link_fault,
        link_that_does_not_mend,
        link_that_stays_broken,
        link_that_breaks_now_and_then,
        link_that_breaks_while_steps_commit,
        link_to_a_node_that_several_miss,
        link_to_a_standby_that_is_seeded,
        link_between_two_only_copies,
        link_between_two_only_copies_after_the_last_commit,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_transcript(name: str, request: pytest.FixtureRequest) -> None:
    check_transcript(name, SCENARIOS[name](), request.config.getoption("--rewrite"))

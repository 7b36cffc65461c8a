"""Who computes wrongly: what is told of the same thing twice, and what follows where it differs."""

from dataclasses import replace

import pytest

from culm.coordinator import state as co
from culm.coordinator.checkpoints import manifests_due
from culm.coordinator.checks import (
    MOST_LIVES,
    MOST_OF_TWO,
    PROOF,
    Checks,
    Doubt,
    differing,
    noted,
    refusal,
    undecided,
)
from culm.coordinator.commands import WriteManifest
from culm.pipeline.audits import Audited, auditor_of, audits_of, digest_of_numbers
from culm.pipeline.identity import Identity
from culm.pipeline.instruction import Duty
from culm.pipeline.plan import Plan, StagePlan, Standby

RING = Plan(
    term=1,
    generation=1,
    era=0,
    step=0,
    stages=tuple(StagePlan(s, s + 1, (f"n{s}",), (Standby(f"n{(s - 1) % 3}", hot=True),)) for s in range(3)),
    audit=1.0,
)
NOBODY: frozenset[int] = frozenset()


def of(*nodes: str) -> Doubt:
    return Doubt("something", frozenset(nodes), frozenset())


def told(states: dict[str, int]) -> Checks:
    checks = Checks()
    for node, digest in states.items():
        checks = checks.told((node, 1), 0, [digest], [], [])
    return checks


def test_what_a_process_has_told_does_not_stand_for_the_copy_of_the_next_one() -> None:
    checks = Checks().told(("n0", 1), 0, [7], [], []).told(("n1", 2), 0, [7], [], [])
    again = checks.told(("n1", 2), 0, [8], [], [])
    assert differing(again, RING, (), 1, 1, NOBODY) is None, "the first word counts"
    anew = differing(checks.told(("n1", 3), 0, [8], [], []), RING, (), 1, 1, NOBODY)
    assert anew is not None
    assert anew.nodes == {"n0", "n1"}


def test_the_few_of_three_are_wrong_and_of_two_nobody_can_say() -> None:
    assert differing(told({"n0": 7, "n1": 7, "n2": 7}), RING, (), 1, 1, NOBODY) is None
    three = differing(told({"n0": 7, "n1": 8, "n2": 7}), RING, (), 1, 1, NOBODY)
    assert three is not None
    assert three.guilty == {"n1"}
    assert three.of_state
    two = differing(told({"n0": 7, "n1": 8}), RING, (), 1, 1, NOBODY)
    assert two is not None
    assert two.guilty == set()
    assert two.nodes == {"n0", "n1"}
    apart = differing(told({"n0": 7, "n1": 8, "n2": 9}), RING, (), 1, 1, NOBODY)
    assert apart is not None
    assert apart.guilty == set()


def test_an_output_is_compared_as_it_was_taken() -> None:
    checks = (
        Checks().told(("n1", 1), 1, [], [Audited(0, 0, 2, 5)], []).told(("n2", 1), 0, [], [], [Audited(0, 0, 2, 6)])
    )
    found = differing(checks, RING, (), 4, 1, NOBODY)
    assert found is not None
    assert found.what == "the forward of microbatch 2 (stage 0)"
    assert found.nodes == {"n0", "n2"}
    moved = differing(checks, RING, (), 4, 1, frozenset({0}))
    assert moved is not None
    assert moved.nodes == set(), "whoever gave it is lost: nobody who is left is in doubt"
    assert differing(checks.told(("n1", 1), 1, [], [], []), RING, (), 4, 1, NOBODY) == found


def test_the_last_stages_output_is_what_the_loss_tells() -> None:
    tallies = (0.5, 1.0, 0.25, 1.0)
    right = Audited(0, 2, 1, digest_of_numbers(tallies[2:]))
    assert differing(Checks().told(("n1", 1), 2, [], [], [right]), RING, tallies, 2, 2, NOBODY) is None
    wrong = Audited(0, 2, 0, right.digest)
    found = differing(Checks().told(("n1", 1), 2, [], [], [wrong]), RING, tallies, 2, 2, NOBODY)
    assert found is not None
    assert found.nodes == {"n1", "n2"}


def test_whoever_differs_from_two_that_agree_is_the_one() -> None:
    checks, guilty = noted(Checks(), of("n0", "n1"))
    assert guilty == set()
    checks, guilty = noted(checks, of("n0", "n1"))
    assert guilty == set(), "the same two again tell no more"
    checks, guilty = noted(checks, of("n1", "n2"))
    assert guilty == {"n1"}
    assert checks.doubts == (), "it explains all of them"
    _, guilty = noted(checks, of("n0", "n2"))
    assert guilty == set()


def test_two_that_are_in_doubt_as_often_are_both_left() -> None:
    checks, _ = noted(Checks(), of("n0", "n1"))
    checks, guilty = noted(checks, of("n2", "n3"))
    assert guilty == set()
    _, guilty = noted(checks, of("n1", "n2"))
    assert guilty == set()


def test_a_run_that_cannot_go_on_says_so_and_progress_begins_the_count_anew() -> None:
    checks = Checks()
    for _ in range(MOST_OF_TWO - 1):
        checks, _ = noted(checks, of("n0", "n1"))
        assert undecided(checks) == set()
    assert undecided(noted(checks, of("n0", "n1"))[0]) == {"n0", "n1"}
    assert undecided(noted(checks.after_step(4, RING), of("n0", "n1"))[0]) == set()


def test_a_row_of_audits_proves_that_a_machine_was_right_when_it_began() -> None:
    checks, found = Checks(), [Audited(0, 0, 0, 5)]
    for step in range(PROOF - 1):
        checks = checks.told(("n2", 1), 0, [], [], found).after_step(step, RING)
    assert checks.good == {}
    checks = checks.told(("n2", 1), 0, [], [], found).after_step(PROOF - 1, RING)
    assert checks.good == {"n0": 0, "n2": 0}
    checks = checks.told(("n2", 1), 0, [], [], found).after_step(PROOF, RING)
    assert checks.good == {"n0": 1, "n2": 1}
    back = checks.of_era(1)
    assert (dict(back.good), dict(back.passed)) == ({"n0": 0, "n2": 0}, {})
    assert noted(checks, Doubt("x", frozenset({"n0", "n1", "n2"}), frozenset({"n0"})))[0].good == {"n2": 1}
    assert Checks().told(("n2", 1), 0, [], [], found).after_step(7, RING, proof=1).good == {"n0": 7, "n2": 7}


def test_a_node_has_told_its_audits_under_one_plan_or_if_it_names_none_under_all() -> None:
    both, plan, next_plan = frozenset({0, 1}), (1, 4), (1, 5)
    assert not Checks().is_done_by("n0", both, plan)
    checks = Checks().done_by("n0", range(1), plan)
    assert not checks.is_done_by("n0", both, plan), "one layer is left"
    checks = checks.done_by("n0", range(1, 2), plan)
    assert checks.is_done_by("n0", both, plan)
    assert not checks.is_done_by("n0", both, next_plan), "other auditors may be named there"
    assert not checks.done_by("n0", range(1), next_plan).is_done_by("n0", both, next_plan)
    older = Checks().done_by("n0", range(2), None)
    assert older.is_done_by("n0", both, plan)
    assert older.is_done_by("n0", both, next_plan)
    assert not older.of_step().is_done_by("n0", both, plan)


def test_what_agreed_and_what_differed_is_counted_over_the_whole_run() -> None:
    checks = told({"n0": 7, "n1": 7}).told(("n2", 1), 1, [8], [], [Audited(0, 0, 0, 5), Audited(0, 0, 1, 5)])
    checks = checks.after_step(0, RING).told(("n0", 1), 0, [7], [], [Audited(0, 0, 0, 5)])
    assert (checks.forwards, checks.compared, checks.differed) == (2, 1, 0), "a state with one holder is not compared"
    checks, _ = noted(checks, of("n0", "n1"))
    checks = checks.of_era(0).told(("n2", 1), 0, [], [], [Audited(0, 0, 0, 5)]).after_step(0, RING)
    assert (checks.forwards, checks.compared, checks.differed) == (3, 1, 1), "what is in doubt is no proof"


def test_a_machine_that_is_found_again_is_not_let_in() -> None:
    checks = Checks()
    for _ in range(MOST_LIVES):
        assert refusal(checks, "n1") == ""
        checks, _ = noted(checks, Doubt("the state of layer 0", frozenset({"n0", "n1", "n2"}), frozenset({"n1"})))
    assert "n1 was found to compute wrongly 2 times" in refusal(checks, "n1")
    assert refusal(checks, "n0") == ""


def test_a_checkpoint_waits_for_the_gate_after_it_unless_none_may_follow() -> None:
    whole = WriteManifest(era=0, step=4, loss=0.5, fingerprint="", files={}, identity=Identity())
    storage = co.Storage(pending=(whole,))
    settings = co.Settings(stages=1, microbatches=1, steps=10, audit=1.0)
    state = co.State(settings=settings, phase=co.Phase.RUNNING, committed=5, storage=storage)
    assert manifests_due(state) == (state, ())
    later, orders = manifests_due(replace(state, committed=6))
    assert orders == (whole,)
    assert later.storage.pending == ()
    assert later.storage.ordered == {4}
    for at_once in (
        replace(state, phase=co.Phase.PAUSED),
        replace(state, phase=co.Phase.DONE),
        replace(state, stopping=co.Stopping(since=1.0)),
        replace(state, settings=replace(settings, audit=0.0)),
    ):
        assert manifests_due(at_once)[1] == (whole,)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_a_share_of_the_forwards_is_drawn_and_others_after_a_rollback(share: float) -> None:
    plan = Plan(**{**vars(RING), "audit": share})
    drawn = {
        era: {
            (s, m, step)
            for s in range(3)
            for m in range(8)
            for step in range(50)
            if auditor_of(plan, Duty(0, s), m, era, step)
        }
        for era in (0, 1)
    }
    count = 3 * 8 * 50
    assert all(abs(len(found) - share * count) <= 0.06 * count for found in drawn.values())
    assert drawn[0] != drawn[1] or share in (0.0, 1.0)


def test_each_audit_is_one_nodes_and_never_the_owners() -> None:
    audits = {node: audits_of(RING, node, 4, 0, 3) for node in ("n0", "n1", "n2")}
    assert sorted(each for found in audits.values() for each in found) == [
        (Duty(0, s), m) for s in range(3) for m in range(4)
    ]
    assert all(RING.owner_of(duty) != node for node, found in audits.items() for duty, _ in found)
    alone = Plan(term=1, generation=1, era=0, step=0, stages=(StagePlan(0, 3, ("n0",)),), audit=1.0)
    assert audits_of(alone, "n0", 4, 0, 0) == []

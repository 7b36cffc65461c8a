"""Orders go to whom they are for, and to those first who wait for nothing else."""

import pytest

from culm.coordinator.edges.effects import GIVE_WAY, in_turn, pause_before
from culm.pipeline.plan import Plan, StagePlan, Standby


def test_owners_are_told_in_the_order_of_their_stages_and_the_others_after_them() -> None:
    stages = (
        StagePlan(0, 1, ("c",), (Standby("spare", True),)),
        StagePlan(1, 2, ("b",), ()),
        StagePlan(2, 3, ("c",), ()),
        StagePlan(3, 4, ("a",), ()),
    )
    assert in_turn(["spare", "a", "b", "c", "other"], Plan(1, 1, 1, 0, stages, {})) == ["c", "b", "a", "spare", "other"]


def test_without_a_plan_they_are_told_in_the_order_in_which_they_came() -> None:
    assert in_turn(["b", "a"], None) == ["b", "a"]


@pytest.mark.parametrize(
    ("turn", "slot_seconds", "pause"),
    [
        (0, 1.0, 0.0),  # the first stage's node never waits
        (1, 1.0, GIVE_WAY),
        (999, 0.01, GIVE_WAY),
        (1, 0.0099, 0.0),  # the second stage would feel it
        (1, 0.0, 0.0),  # nothing is known yet
    ],
)
def test_later_stages_give_way_where_they_have_nothing_to_do_yet(turn: int, slot_seconds: float, pause: float) -> None:
    assert pause_before(turn, slot_seconds) == pause

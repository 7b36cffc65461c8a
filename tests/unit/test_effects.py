"""Orders go to whom they are for, and to those first who wait for nothing else."""

from culm.coordinator.edges.translation import in_turn
from culm.pipeline.plan import Plan, StagePlan, Standby


def test_owners_are_told_in_the_order_of_their_stages_and_the_others_after_them() -> None:
    stages = (
        StagePlan(0, 1, ("c",), (Standby("spare", True),)),
        StagePlan(1, 2, ("b",), ()),
        StagePlan(2, 3, ("c",), ()),
        StagePlan(3, 4, ("a",), ()),
    )
    assert in_turn(
        ["spare", "a", "b", "c", "other"], Plan(term=1, generation=1, era=1, step=0, stages=stages, members={})
    ) == ["c", "b", "a", "spare", "other"]


def test_without_a_plan_they_are_told_in_the_order_in_which_they_came() -> None:
    assert in_turn(["b", "a"], None) == ["b", "a"]

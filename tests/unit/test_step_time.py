"""How long a step takes, calm and with a lost node in it."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.pipeline.flow import inputs_of
from culm.pipeline.plan import StagePlan, Stages
from culm.pipeline.schedule import Schedule
from culm.simulator.markets.step_time import Durations, StepRun, calm

F, B = 0.01, 0.02


def four(hop: float = 0.0, lead: int = 2, microbatches: int = 8) -> StepRun:
    return StepRun(
        owners=("a", "b", "c", "d"), schedule=Schedule(microbatches, lead), durations=Durations((F,) * 4, (B,) * 4, hop)
    )


def run_by(owners: Sequence[str]) -> Stages:
    """A layer and an owner for each stage."""
    return tuple(StagePlan(s, s + 1, (owner,)) for s, owner in enumerate(owners))


def consistent(step: StepRun, since: float = 0.0) -> None:
    """Nothing begins before what it needs is there, and a node does one thing at a time since it has its stages."""
    stages = len(step.owners)
    for instruction, begins in step.began.items():
        for needed in inputs_of(instruction, stages):
            if needed.stage != instruction.stage:
                assert begins >= step.arrived[needed] - 1e-9 or begins >= step.ended[needed] - 1e-9
    for node in set(step.owners):
        mine = sorted((step.began[i], step.ended[i]) for i in step.ended if step.owners[i.stage] == node)
        mine = [(begins, end) for begins, end in mine if begins >= since]
        assert all(end <= begins + 1e-9 for (_, end), (begins, _) in pairwise(mine))


def test_a_calm_step_is_as_long_as_the_ideal() -> None:
    assert four().seconds == pytest.approx((8 + 3) * (F + B))
    consistent(four())


def test_tensors_on_their_way_cost_at_the_beginning_and_at_the_end() -> None:
    assert four(hop=0.001).seconds == pytest.approx((8 + 3) * (F + B) + 6 * 0.001)


def test_times_of_a_node_fill_the_step() -> None:
    times = four().times("b")
    assert (times.forward, times.backward) == pytest.approx((8 * F, 8 * B))
    assert times.bubble == pytest.approx(3 * (F + B))
    assert four().room_for_forwards() == 1.0
    assert four(microbatches=80).room_for_forwards() == pytest.approx(3 * 3 / 80)
    nothing = StepRun(owners=("a", "b"), schedule=Schedule(2, 1), durations=Durations((0.0,) * 2, (0.0,) * 2))
    assert nothing.room_for_forwards() == 1.0


@given(
    stage=st.integers(0, 3),
    at=st.floats(0.0, 0.33),
    pause=st.floats(0.0, 0.05),
    every=st.integers(0, 4),
    ahead=st.floats(0, 1),
)
def test_an_heir_redoes_what_is_lost_and_nobody_else_anything(
    stage: int, at: float, pause: float, every: int, ahead: float
) -> None:
    before = four(hop=0.001)
    owners = list(before.owners)
    owners[stage] = owners[stage - 1]
    step = before.of(run_by(before.owners))
    redone = step.lose(at, at + pause, run_by(owners), ahead, every)
    consistent(step, at)
    assert set(step.ended) == set(before.ended)
    assert redone <= sum(end <= at for i, end in before.ended.items() if i.stage == stage)
    survivors = set(before.owners) - {before.owners[stage], owners[stage]}
    for instruction, end in before.ended.items():
        if before.owners[instruction.stage] in survivors and end <= at:
            assert step.ended[instruction] == end, "a survivor's work was done again"
    assert step.seconds >= before.seconds - 1e-9


def test_shipped_gradients_and_forwards_run_ahead_leave_less_to_redo() -> None:
    def loses(**more: float) -> float:
        step = four().of(run_by("abcd"))
        step.lose(0.2, 0.2, run_by("aacd"), **more)  # type: ignore[arg-type]
        return step.seconds

    lazy, eager, shipped = loses(), loses(ahead=1.0), loses(ship_every=2)
    assert eager < lazy
    assert shipped < lazy


def test_a_stage_that_was_through_is_not_redone() -> None:
    step = four().of(run_by("abcd"))
    through = max(end for i, end in step.ended.items() if i.stage == 3)
    assert step.lose(through, through + 0.1, run_by("abcc")) == 0
    assert step.seconds == pytest.approx(four().seconds)


def test_a_step_is_worked_out_once() -> None:
    schedule, durations = Schedule(8, 2), Durations((F,) * 4, (B,) * 4)
    assert calm((0, 1, 2, 3), schedule, durations) is calm((0, 1, 2, 3), schedule, durations)

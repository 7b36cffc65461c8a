"""Where the compute thread's time goes: what counts as what, and that nothing is lost or counted twice."""

from dataclasses import astuple, dataclass

import pytest

from culm.pipeline.messages import times_from_proto, times_to_proto
from culm.pipeline.plan import Member, Plan, StagePlan
from culm.pipeline.schedule import Schedule
from culm.pipeline.ties import Addend
from culm.pipeline.times import TimeSplit
from culm.pipeline.tree import Block
from culm.stage_server.watching.kinds import Phase, kind_of
from culm.stage_server.watching.time_split import Times, redundant_share
from culm.stage_server.watching.traffic import Traffic
from culm.stage_server.worker.work import Apply, Arrange, Install, Reduce, Run, Save, Work
from culm.stage_server.worker.worker import Worker
from tests.short import activation, duty, unit


@dataclass(frozen=True)
class Nothing:
    squared_norms: tuple[float, ...] = ()
    tallies: tuple[float, ...] = ()
    digest: int = 0

    def part(self, place: int) -> "Nothing":
        return self


WORKS: list[tuple[Work[Nothing], Phase]] = [
    (Run(instruction=unit(1, "F", 0), step=0, tenure=1, operands=(Nothing(),)), "forward"),
    (Run(instruction=unit(1, "B", 0), step=0, tenure=1, operands=(Nothing(),)), "backward"),
    (Reduce(stage=1, step=0, block=Block(0, 1), leaves=True, tenures=((duty(1), 1),)), "backward"),
    (Apply(0, 1.0, ()), "apply"),
    (Arrange(layers=(0,), duties=((duty(0), range(1)),), stages=2, step=0, anew=True), "apply"),
    (Install(0, 0, Nothing(), "n1"), "apply"),
    (Save(era=0, step=0, layers=(0,), loss=0.5), "apply"),
]


@pytest.mark.parametrize(("work", "phase"), WORKS)
def test_every_piece_of_work_counts_as_one_phase(work: Work[Nothing], phase: Phase) -> None:
    assert kind_of(work).phase == phase


def test_the_split_is_all_of_the_time() -> None:
    times = Times(10.0)
    for phase, now in (("forward", 11.0), ("bubble", 13.0), ("backward", 16.0), ("apply", 20.0), ("idle", 25.0)):
        times.turn(phase, now)  # type: ignore[arg-type]
    assert times.split(31.0) == TimeSplit(forward=2.0, bubble=3.0, backward=4.0, apply=5.0, idle=7.0)
    assert sum(astuple(times.split(31.0))) == 31.0 - 10.0


def test_applying_a_step_to_a_standbys_layers_is_redundant_work() -> None:
    apply: Work[Nothing] = Apply(0, 1.0, tuple((layer, (Nothing(),)) for layer in range(4)))
    assert redundant_share(apply, [range(1)]) == 0.75
    assert redundant_share(apply, [range(2), range(2, 4)]) == 0.0
    assert redundant_share(Run(instruction=unit(1, "F", 0), step=0, tenure=1, operands=(Nothing(),)), []) == 0.0
    times = Times(0.0)
    times.turn("apply", 0.0, 0.75)
    assert times.split(4.0) == TimeSplit(apply=1.0, redundant=3.0)


def test_what_goes_on_counts_already() -> None:
    times = Times(0.0)
    times.turn("forward", 1.0)
    assert times.split(4.0).forward == 3.0
    assert times.split(5.0).forward == 4.0


def test_no_part_shrinks_for_one_who_read_the_clock_too_early() -> None:
    times = Times(0.0)
    times.turn("forward", 1.0)
    times.turn("backward", 2.0)
    assert times.split(1.5) == TimeSplit(idle=1.0, forward=1.0)


def test_a_split_survives_the_wire() -> None:
    split = TimeSplit(forward=1.0, backward=2.0, redundant=3.0, apply=4.0, bubble=5.0, idle=6.0)
    assert times_from_proto(times_to_proto(split)) == split


def test_bytes_add_up_by_peer() -> None:
    traffic = Traffic()
    for peer, count in (("n1", 3), ("n2", 5), ("n1", 4)):
        traffic.sent(peer, count)
    traffic.received("n0", 2)
    assert traffic.sent_by_peer() == {"n1": 7, "n2": 5}
    assert traffic.received_by_peer() == {"n0": 2}


def two_stages() -> Plan:
    members = {name: Member(name, 1) for name in ("n0", "n1")}
    return Plan(
        term=1,
        generation=1,
        era=0,
        step=0,
        stages=(StagePlan(0, 1, ("n0",)), StagePlan(1, 2, ("n1",))),
        members=members,
    )


def waits_for_input(worker: Worker[Nothing]) -> bool:
    """Whether, there being nothing to do, it is for want of a tensor."""
    assert worker.next_work() is None
    return worker.awaited is not None


def test_waiting_for_a_tensor_of_the_step_is_a_bubble_and_nothing_else_is() -> None:
    worker: Worker[Nothing] = Worker("n1", 1, Schedule(1), steps=1)
    assert not waits_for_input(worker), "there is no plan yet"

    plan = two_stages()
    worker.take_plan(plan)
    arrange = worker.next_work()
    assert isinstance(arrange, Arrange)
    worker.finish(arrange)
    assert waits_for_input(worker), "1F0 lacks the activation of 0F0"

    worker.deliver("n0", 1, plan.order, activation(0, 0), Nothing())
    for instruction in (unit(1, "F", 0), unit(1, "B", 0)):
        work = worker.next_work()
        assert isinstance(work, Run)
        assert work.instruction == instruction
        assert worker.awaited is None
        worker.finish(work, Nothing())
    reduce = worker.next_work()
    assert isinstance(reduce, Reduce)
    worker.finish(reduce, values=((Addend(1), Nothing()),))
    assert not waits_for_input(worker), "only the commit is missing"

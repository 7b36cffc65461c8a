"""A worker between events: what it loads ahead, and what it need not wake up for."""

from dataclasses import dataclass, replace

import pytest

from pipeline.keys import Key, Kind
from pipeline.plan import Member, Plan, StagePlan, Standby
from pipeline.schedule import Instruction, Schedule
from stage_server.instructions import Arrange, Load, Run, Send
from stage_server.worker import Worker


@dataclass(frozen=True)
class Nothing:
    squared_norm: float = 0.0
    losses: tuple[float, ...] = ()


NAMES = ("n0", "n1", "n2")
STAGES = tuple(StagePlan(s, s + 1, (NAMES[s],), (Standby(NAMES[s - 1], hot=True),)) for s in range(3))
PLAN = Plan(1, 1, 0, 0, STAGES, {name: Member(name, 1) for name in NAMES})


def worker_of(name: str, steps: int = 2, lead: int = 1) -> Worker[Nothing]:
    worker: Worker[Nothing] = Worker(name, 1, Schedule(2, lead), steps)
    worker.take_plan(PLAN)
    arrange = worker.next_work()
    assert isinstance(arrange, Arrange)
    worker.finish(arrange)
    return worker


def runs_next(worker: Worker[Nothing]) -> Instruction:
    work = worker.next_work()
    assert isinstance(work, Run)
    worker.finish(work, Nothing())
    return work.instruction


def test_the_samples_of_this_step_are_loaded_first_and_those_of_the_next_once_it_has_begun_here() -> None:
    worker = worker_of("n0")
    assert list(worker.next_loads()) == [Load(0, 0), Load(0, 1)]
    assert runs_next(worker) == Instruction(0, "F", 0)
    assert list(worker.next_loads()) == [Load(0, 1), Load(1, 0), Load(1, 1)]


@pytest.mark.parametrize(("name", "steps", "count"), [("n0", 1, 1), ("n1", 2, 0), ("n0", 2, 3), ("n2", 2, 2)])
def test_nothing_is_loaded_after_the_last_step_or_by_a_stage_that_takes_no_samples(
    name: str, steps: int, count: int
) -> None:
    worker = worker_of(name, steps)
    if name == "n0":
        runs_next(worker)
    assert len(list(worker.next_loads())) == count


def test_an_acknowledgement_gives_an_owner_nothing_to_do_but_it_may_spare_an_heir_work() -> None:
    worker = worker_of("n0")
    assert runs_next(worker) == Instruction(0, "F", 0)
    assert not worker.acknowledged("n1", 1, [Key(0, 0, 0, Kind.ACTIVATION, 0, 0)])

    stages = (STAGES[0], replace(STAGES[1], owners=("n0",), standbys=()), STAGES[2])
    worker.take_plan(Plan(1, 2, 0, 0, stages, {name: PLAN.members[name] for name in ("n0", "n2")}))
    assert not worker.acknowledged("n2", 1, [])
    assert worker.acknowledged("n2", 1, [Key(0, 0, 0, Kind.ACTIVATION, 1, 0)])


def test_a_program_is_gone_through_once_and_again_from_its_beginning_in_the_next_plan() -> None:
    worker = worker_of("n0")
    assert [runs_next(worker) for _ in range(2)] == [Instruction(0, "F", 0), Instruction(0, "F", 1)]
    assert worker.next_work() is None
    assert worker.awaited == Key(0, 0, 0, Kind.GRADIENT, 1, 0)

    stages = (STAGES[0], replace(STAGES[1], owners=("n0",), standbys=()), STAGES[2])
    worker.take_plan(Plan(1, 2, 0, 0, stages, {name: PLAN.members[name] for name in ("n0", "n2")}))
    arrange = worker.next_work()
    assert isinstance(arrange, Arrange)
    worker.finish(arrange)
    assert [runs_next(worker) for _ in range(2)] == [Instruction(1, "F", 0), Instruction(1, "F", 1)]


def sent_by_the_last_stage(lead: int) -> tuple[Worker[Nothing], list[Send]]:
    """All that n2 sends in a step: the gradients of two microbatches."""
    worker = worker_of("n2", lead=lead)
    for m in range(2):
        worker.deliver("n1", 1, PLAN.order, Key(0, 0, 0, Kind.ACTIVATION, 1, m), Nothing())
    worker.drain()
    assert [str(runs_next(worker)) for _ in range(4)] == ["2F0", "2B0", "2F1", "2B1"]
    return worker, [effect for effect in worker.drain() if isinstance(effect, Send)]


@pytest.mark.parametrize(("lead", "first_later"), [(1, False), (2, True)])
def test_the_last_stages_gradients_leave_once_its_next_work_has_begun_if_the_stage_before_has_a_lead(
    lead: int, first_later: bool
) -> None:
    _, sends = sent_by_the_last_stage(lead)
    gradients = [Key(0, 0, 0, Kind.GRADIENT, 2, m) for m in range(2)]
    assert sends == [Send("n1", gradients[0], first_later), Send("n1", gradients[1])]


def test_what_is_sent_again_after_a_loss_is_sent_at_once() -> None:
    worker, _ = sent_by_the_last_stage(lead=2)
    stages = (replace(STAGES[0], standbys=()), replace(STAGES[1], owners=("n0",), standbys=()), STAGES[2])
    worker.take_plan(Plan(1, 2, 0, 0, stages, {name: PLAN.members[name] for name in ("n0", "n2")}))
    sends = [effect for effect in worker.drain() if isinstance(effect, Send)]
    assert sends == [Send("n0", Key(0, 0, 0, Kind.GRADIENT, 2, m)) for m in range(2)]


@pytest.mark.parametrize(("name", "awaited"), [("n0", None), ("n1", Key(0, 0, 0, Kind.ACTIVATION, 0, 0)), ("n3", None)])
def test_a_step_begins_with_an_activation_except_at_the_first_stage(name: str, awaited: Key | None) -> None:
    worker: Worker[Nothing] = Worker(name, 1, Schedule(2), 2)
    worker.take_plan(PLAN)
    assert worker.first_input == awaited

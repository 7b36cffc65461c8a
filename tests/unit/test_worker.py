"""A worker between events: what it loads ahead, and what it need not wake up for."""

from dataclasses import dataclass, replace

import pytest

from culm.pipeline.commit import Commit
from culm.pipeline.instruction import Instruction
from culm.pipeline.plan import Member, Plan, StagePlan, Standby
from culm.pipeline.schedule import Schedule
from culm.stage_server.worker.effects import FetchLayers, Forfeit, ReportReady, Send
from culm.stage_server.worker.holdings import Followup, Holdings
from culm.stage_server.worker.work import Apply, Arrange, Install, Load, Run
from culm.stage_server.worker.worker import Worker
from tests.short import activation, gradient, reduced_gradient, unit


@dataclass(frozen=True)
class Nothing:
    squared_norms: tuple[float, ...] = ()
    tallies: tuple[float, ...] = ()
    digest: int = 0

    def part(self, place: int) -> "Nothing":
        return self


NAMES = ("n0", "n1", "n2")
STAGES = tuple(StagePlan(s, s + 1, (NAMES[s],), (Standby(NAMES[s - 1], hot=True),)) for s in range(3))
PLAN = Plan(term=1, generation=1, era=0, step=0, stages=STAGES, members={name: Member(name, 1) for name in NAMES})


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
    assert list(worker.runner.next_loads()) == [Load(0, 0, 0), Load(0, 0, 1)]
    assert runs_next(worker) == unit(0, "F", 0)
    assert list(worker.runner.next_loads()) == [Load(0, 0, 1), Load(1, 0, 0), Load(1, 0, 1)]


@pytest.mark.parametrize(("name", "steps", "count"), [("n0", 1, 1), ("n1", 2, 0), ("n0", 2, 3), ("n2", 2, 0)])
def test_nothing_is_loaded_after_the_last_step_or_by_a_stage_that_takes_no_samples(
    name: str, steps: int, count: int
) -> None:
    worker = worker_of(name, steps)
    if name == "n0":
        runs_next(worker)
    assert len(list(worker.runner.next_loads())) == count


def test_an_acknowledgement_gives_an_owner_nothing_to_do_but_it_may_spare_an_heir_work() -> None:
    worker = worker_of("n0")
    assert runs_next(worker) == unit(0, "F", 0)
    assert not worker.acknowledged("n1", 1, [activation(0, 0)])

    stages = (STAGES[0], replace(STAGES[1], owners=("n0",), standbys=()), STAGES[2])
    worker.take_plan(
        Plan(
            term=1,
            generation=2,
            era=0,
            step=0,
            stages=stages,
            members={name: PLAN.members[name] for name in ("n0", "n2")},
        )
    )
    assert not worker.acknowledged("n2", 1, [])
    assert worker.acknowledged("n2", 1, [activation(1, 0)])


def test_nothing_is_kept_of_what_a_peer_acknowledges_of_eras_to_come() -> None:
    worker = worker_of("n0")
    worker.acknowledged("n1", 1, [activation(0, 0)._replace(era=era) for era in range(50)])
    kept = [worker.post.outbox.has_acknowledged(activation(0, 0)._replace(era=era), "n1", 1) for era in range(50)]
    assert kept == [True, *[False] * 49]


def test_of_what_a_peer_acknowledges_of_steps_far_ahead_nothing_is_kept() -> None:
    """A seeded node three commits behind ended the stream of a reducer, which had acknowledged what it held itself."""
    worker = worker_of("n0", steps=50)
    far = [reduced_gradient(0, 0, step=step) for step in range(50)]
    worker.acknowledged("n1", 1, far)
    assert [worker.post.outbox.has_acknowledged(key, "n1", 1) for key in far] == [True] * 3 + [False] * 47


def test_the_first_tensor_of_an_era_that_is_being_begun_is_read() -> None:
    """A stream asks without the lock: the new plan was there, and its era not yet. Nobody would have sent it again."""
    worker = worker_of("n1")
    first, other = activation(0, 0)._replace(era=1), activation(1, 0)
    assert not worker.post.drops("n0", 1, first)
    assert worker.post.drops("n0", 1, other), "no tensor of n0's"


def test_a_program_is_gone_through_once_and_again_from_its_beginning_in_the_next_plan() -> None:
    worker = worker_of("n0")
    assert [runs_next(worker) for _ in range(2)] == [unit(0, "F", 0), unit(0, "F", 1)]
    assert worker.next_work() is None
    assert worker.awaited == gradient(1, 0)

    stages = (STAGES[0], replace(STAGES[1], owners=("n0",), standbys=()), STAGES[2])
    worker.take_plan(
        Plan(
            term=1,
            generation=2,
            era=0,
            step=0,
            stages=stages,
            members={name: PLAN.members[name] for name in ("n0", "n2")},
        )
    )
    arrange = worker.next_work()
    assert isinstance(arrange, Arrange)
    worker.finish(arrange)
    assert [runs_next(worker) for _ in range(2)] == [unit(1, "F", 0), unit(1, "F", 1)]


def sent_by_the_last_stage(lead: int) -> tuple[Worker[Nothing], list[Send]]:
    """All that n2 sends in a step: the gradients of two microbatches."""
    worker = worker_of("n2", lead=lead)
    for m in range(2):
        worker.deliver("n1", 1, PLAN.order, activation(1, m), Nothing())
    worker.drain()
    assert [str(runs_next(worker)) for _ in range(4)] == ["2F0", "2B0", "2F1", "2B1"]
    return worker, [effect for effect in worker.drain() if isinstance(effect, Send)]


@pytest.mark.parametrize(("lead", "first_later"), [(1, False), (2, True)])
def test_the_last_stages_gradients_leave_once_its_next_work_has_begun_if_the_stage_before_has_a_lead(
    lead: int, first_later: bool
) -> None:
    _, sends = sent_by_the_last_stage(lead)
    gradients = [gradient(2, m) for m in range(2)]
    assert sends == [Send("n1", gradients[0], first_later), Send("n1", gradients[1])]


def test_what_is_sent_again_after_a_lost_node_is_sent_at_once() -> None:
    worker, _ = sent_by_the_last_stage(lead=2)
    stages = (replace(STAGES[0], standbys=()), replace(STAGES[1], owners=("n0",), standbys=()), STAGES[2])
    worker.take_plan(
        Plan(
            term=1,
            generation=2,
            era=0,
            step=0,
            stages=stages,
            members={name: PLAN.members[name] for name in ("n0", "n2")},
        )
    )
    sends = [effect for effect in worker.drain() if isinstance(effect, Send)]
    assert sends == [Send("n0", gradient(2, m)) for m in range(2)]


def seeded(worker: Worker[Nothing], layers: tuple[int, ...]) -> None:
    """The layers that the worker has asked for are here at version 0."""
    worker.drain()
    for layer in layers:
        worker.fetched(0, layer, 0, Nothing(), "n1")
    while isinstance(work := worker.next_work(), Install | Arrange):
        worker.finish(work)


def reports_of(worker: Worker[Nothing]) -> list[tuple[int, int, int]]:
    found = [effect for effect in worker.drain() if isinstance(effect, ReportReady)]
    return [(x.stage, x.first_layer, x.first_layer + len(x.squared_norms)) for x in found]


TWO = (StagePlan(0, 2, ("n0",), (Standby("n1", hot=True),)), StagePlan(2, 6, ("n1",), (Standby("n0", hot=True),)))
PREPARING = Plan(
    term=1,
    generation=1,
    era=0,
    step=0,
    stages=TWO,
    members=PLAN.members,
    target=(StagePlan(0, 4, ("n0",)), StagePlan(2, 4, ("n2",))),
)


def test_a_plan_takes_nothing_within_a_step_and_the_commit_does() -> None:
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 3)
    worker.take_plan(PREPARING)
    seeded(worker, (2, 3))
    for layer in (2, 3):
        worker.deliver("n1", 1, (1, 1), reduced_gradient(1, layer), Nothing())
    assert reports_of(worker) == [(1, 2, 4)]
    worker.take_plan(replace(PREPARING, generation=2, target=()))
    assert [worker.holdings.version_of(layer) for layer in (2, 3)] == [0, 0], "the fact stays true"
    seeded(worker, ())
    worker.take_commit(Commit(term=1, era=0, step=0, scale=1.0))
    apply = worker.next_work()
    assert apply == Apply(0, 1.0, ())
    worker.finish(apply)
    assert [worker.holdings.version_of(layer) for layer in (2, 3)] == [None, None]
    assert worker.next_work() == Arrange(layers=(), duties=(), stages=2, step=1, anew=False)


def test_a_gradient_that_comes_while_its_commit_is_being_applied_is_applied_next() -> None:
    """With the last commit, too: no later gradient would show that the layer has to be fetched again."""
    seeding = (replace(TWO[0], standbys=(Standby("n2", hot=False),)), TWO[1])
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 1)
    worker.take_plan(replace(PREPARING, stages=seeding, target=()))
    seeded(worker, (0, 1))
    worker.take_commit(Commit(term=1, era=0, step=0, scale=1.0))
    apply = worker.next_work()
    assert apply == Apply(0, 1.0, ()), "nothing of it is here"
    for layer in (0, 1):
        worker.deliver("n0", 1, (1, 1), reduced_gradient(0, layer), Nothing())
    worker.finish(apply)
    for layer in (0, 1):
        catch_up = worker.next_work()
        assert catch_up == Apply(0, 1.0, ((layer, (Nothing(),)),), catch_up=True)
        worker.finish(catch_up)
    assert [worker.holdings.version_of(layer) for layer in (0, 1)] == [1, 1]


def test_nothing_waits_for_a_gradient_once_the_last_commit_is_here() -> None:
    """An earlier commit does not either: the owner of its gradients may be gone, and no later one will come."""
    seeding = (replace(TWO[0], standbys=(Standby("n2", hot=False),)), TWO[1])
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 2)
    worker.take_plan(replace(PREPARING, stages=seeding, target=()))
    seeded(worker, (0, 1))
    worker.take_commit(Commit(term=1, era=0, step=0, scale=1.0))
    assert worker.next_work() is None, "its gradients may be on their way"
    worker.take_commit(Commit(term=1, era=0, step=1, scale=1.0))
    for step in (0, 1):
        apply = worker.next_work()
        assert apply == Apply(step, 1.0, ())
        worker.finish(apply)
    asked = [effect.layers for effect in worker.drain() if isinstance(effect, FetchLayers)]
    assert asked == [(0, 1)], "again"


@pytest.mark.parametrize(
    ("others", "at_once"), [((), True), ((Standby("n1", hot=True),), False)], ids=["the only one", "one of two"]
)
def test_the_only_copy_of_a_stage_is_fetched_as_fast_as_it_goes(others: tuple[Standby, ...], at_once: bool) -> None:
    stages = (replace(TWO[0], standbys=(*others, Standby("n2", hot=False))), TWO[1])
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 2)
    worker.take_plan(replace(PREPARING, stages=stages, target=()))
    assert [effect.at_once for effect in worker.drain() if isinstance(effect, FetchLayers)] == [at_once]


def test_a_node_of_the_stages_to_be_leaves_the_link_to_training() -> None:
    """There may be no copies at all: then nothing else is at risk than was before."""
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 3)
    worker.take_plan(replace(PREPARING, stages=tuple(replace(stage, standbys=()) for stage in TWO)))
    asked = [effect.at_once for effect in worker.drain() if isinstance(effect, FetchLayers)]
    assert asked
    assert not any(asked)


def test_a_report_of_a_part_hides_none_of_the_whole_stage() -> None:
    """A lost node gives the stage to a node that was ready with a part of it, which begins at the same layer."""
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 3)
    worker.take_plan(PREPARING)
    seeded(worker, (2, 3))
    for layer in (2, 3):
        worker.deliver("n1", 1, (1, 1), reduced_gradient(1, layer), Nothing())
    assert reports_of(worker) == [(1, 2, 4)]
    stages = (TWO[0], replace(TWO[1], standbys=(Standby("n2", hot=False),)))
    worker.take_plan(replace(PREPARING, generation=2, stages=stages, target=()))
    seeded(worker, (4, 5))
    for layer in (4, 5):
        worker.deliver("n1", 1, (1, 2), reduced_gradient(1, layer), Nothing())
    assert reports_of(worker) == [(1, 2, 6)]


def test_a_holder_that_was_passed_over_forfeits_though_it_has_the_gradients_of_the_step() -> None:
    """Without the commit before it has no state that they could be applied to (rule 6)."""
    worker: Worker[Nothing] = Worker("n1", 1, Schedule(2), 3)
    worker.take_plan(replace(PREPARING, target=()))
    seeded(worker, ())
    for s, stage in enumerate(TWO):
        for layer in stage.layers:
            worker.post.mailbox.put(reduced_gradient(s, layer, step=1), Nothing())
    worker.take_commit(Commit(term=1, era=0, step=1, scale=1.0))
    worker.drain()
    assert worker.next_work() == Apply(1, 1.0, ())
    assert any(isinstance(effect, Forfeit) for effect in worker.drain())


def test_of_two_answers_for_the_same_layer_the_later_one_is_left() -> None:
    """The plan changed between them: the one before, from a node that has gone since, is of an older step (rule 2)."""
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 3)
    worker.take_plan(replace(PREPARING, step=1, stages=TWO))
    worker.drain()
    worker.finish(worker.next_work() or pytest.fail("nothing is arranged"))
    worker.fetched(0, 2, 1, Nothing(), "n1")
    worker.fetched(0, 2, 0, Nothing(), "n0")
    first = Install(2, 1, Nothing(), "n1")
    assert worker.next_work() == first
    worker.finish(first)
    assert worker.next_work() is None
    assert worker.holdings.version_of(2) == 1


def test_a_plan_that_counts_on_the_process_before_is_not_taken() -> None:
    """It was started again, and attends before the coordinator knows of the loss (rule 13)."""
    again: Worker[Nothing] = Worker("n1", 2, Schedule(2), 2)
    again.take_plan(PLAN)
    assert again.plan is None
    assert again.next_work() is None
    spare = replace(PLAN, generation=2, stages=(StagePlan(0, 3, ("n0",)),))
    again.take_plan(spare)
    assert again.plan == spare


def test_a_stage_that_is_being_seeded_keeps_few_gradients_however_long_that_takes() -> None:
    """Every layer kept all gradients until its state came: a large stage filled the memory of each node in turn."""
    holdings: Holdings[Nothing] = Holdings()
    stage = StagePlan(0, 20, ("n0",), (Standby("n2", hot=False),))
    plan = replace(PREPARING, stages=(stage,), target=())
    holdings.adopt(plan, "n2", 0, anew=True)
    (first,) = holdings.fetches(plan, "n2")
    assert (first.layers, holdings.fetches(plan, "n2")) == ((0, 1), []), "the next when one of these is here"
    for step in range(30):
        for layer in range(20):
            assert not holdings.takes_step(layer, Followup(step, 1.0, (Nothing(),)))
    kept = [len(holdings._followups[layer]) for layer in range(20)]
    assert kept == [30, 30, *[1] * 18]


def test_work_of_an_era_before_is_void_though_its_plan_had_the_same_generation() -> None:
    """Two leaders that read the same document each begin an era, from the same step and with the same generation."""
    worker: Worker[Nothing] = Worker("n0", 1, Schedule(2), 3)
    worker.take_plan(replace(PREPARING, generation=2, era=1, target=()))
    seeded(worker, (0, 1))
    forward = worker.next_work()
    assert isinstance(forward, Run)
    worker.take_plan(replace(PREPARING, term=2, generation=2, era=2, target=()))
    worker.finish(forward, Nothing())
    assert not worker.runner.duties.has_done(forward.instruction), "its graph went with the era"

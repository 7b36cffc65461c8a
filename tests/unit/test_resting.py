"""A worker in a pause: it begins no step, saves what it holds, and says which seeded copies are whole (rule 24)."""

from dataclasses import replace

from culm.pipeline.commit import Commit
from culm.pipeline.pause import Pause
from culm.pipeline.plan import Plan, StagePlan, Standby
from culm.pipeline.schedule import Schedule
from culm.stage_server.worker.effects import FetchLayers, ReportCaughtUp
from culm.stage_server.worker.work import Apply, Arrange, Run, Save
from culm.stage_server.worker.worker import Worker
from tests.unit.test_worker import PLAN, PREPARING, TWO, Nothing, seeded

ADA = Pause("ada", 1_000.0)
ALONE = (StagePlan(0, 1, ("n0",)),)
SEEDING = (replace(TWO[0], standbys=(Standby("n2", hot=False),)), TWO[1])


def commit(step: int, plan: Plan | None = None) -> Commit:
    return Commit(term=1, era=0, step=step, scale=1.0, next_plan=plan)


def works(worker: Worker[Nothing]) -> list[object]:
    """All that it does until it waits, or begins an instruction."""
    done: list[object] = []
    while (work := worker.next_work()) is not None and len(done) < 20:
        done.append(work)
        worker.finish(work)
    return done


def test_no_step_is_begun_in_a_pause_and_the_version_is_saved_once() -> None:
    worker: Worker[Nothing] = Worker("n0", 1, Schedule(1), 9, checkpoint_every=1000)
    alone = replace(PLAN, stages=ALONE, pause=ADA)
    worker.take_plan(alone)
    kinds = [type(work) for work in works(worker)]
    assert kinds == [Arrange], "the version is what the era began from, so there is nothing to save"
    worker.take_plan(replace(alone, generation=2, pause=None))
    work = worker.next_work()
    while not isinstance(work, Run):
        assert work is not None
        worker.finish(work)
        work = worker.next_work()
    assert work.step == 0


def test_a_share_of_a_pause_is_saved_again_only_by_whoever_takes_more() -> None:
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 9, checkpoint_every=1000)
    hot = (replace(TWO[0], standbys=(Standby("n2", hot=True),)), TWO[1])
    paused = replace(PREPARING, stages=hot, target=(), step=4, pause=ADA)
    worker.take_plan(replace(PREPARING, stages=SEEDING, target=(), step=4, pause=ADA))
    worker.drain()
    for layer in (0, 1):
        worker.fetched(0, layer, 4, Nothing(), "n0")
    assert not [work for work in works(worker) if isinstance(work, Save)], "it is not for a copy to save"
    worker.take_plan(replace(paused, generation=2))
    (save,) = [work for work in works(worker) if isinstance(work, Save)]
    assert (save.step, save.layers, save.last) == (4, (0, 1), True)
    worker.take_plan(replace(paused, generation=3))
    assert not [work for work in works(worker) if isinstance(work, Save)]
    worker.applying.save_again()
    assert [work.layers for work in works(worker) if isinstance(work, Save)] == [(0, 1)], "it was not there any more"


def test_nothing_waits_for_a_gradient_once_the_commit_of_a_pause_is_here() -> None:
    """Its sender may be gone, and no later gradient comes: the copy would not be whole before the pause is over."""
    worker: Worker[Nothing] = Worker("n2", 1, Schedule(2), 9)
    worker.take_plan(replace(PREPARING, stages=SEEDING, target=()))
    seeded(worker, (0, 1))
    worker.take_commit(commit(0))
    assert worker.next_work() is None, "its gradients may be on their way"
    worker.take_commit(commit(1, replace(PREPARING, generation=2, stages=SEEDING, target=(), step=2, pause=ADA)))
    for step in (0, 1):
        apply = worker.next_work()
        assert apply == Apply(step, 1.0, ())
        worker.finish(apply)
    asked = [effect.layers for effect in worker.drain() if isinstance(effect, FetchLayers)]
    assert asked == [(0, 1)], "again"
    for layer in (0, 1):
        worker.fetched(0, layer, 2, Nothing(), "n0")
    works(worker)
    told = [effect for effect in worker.drain() if isinstance(effect, ReportCaughtUp)]
    assert told == [ReportCaughtUp(0, 0, 2, 2, (1, 2))]
    assert worker.facts.repeated_settled() == tuple(told)
    worker.take_plan(replace(PREPARING, generation=3, stages=SEEDING, target=(), step=2))
    assert worker.facts.repeated_settled() == ()

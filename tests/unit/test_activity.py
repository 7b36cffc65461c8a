"""What fits into a wait, by what the waits and the work took before."""

import pytest

from culm.pipeline.keys import Key
from culm.pipeline.tensors.values import Value
from culm.stage_server.watching.activity import Activity
from culm.stage_server.worker.work import Apply, Arrange, Load, Run
from tests.short import gradient, unit

GRADIENT = gradient(1, 3)
LOAD = Load(1, 0, 0)
FORWARD: Run[Value] = Run(instruction=unit(1, "F", 0), step=0, tenure=-1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def activity(clock: Clock) -> Activity:
    return Activity(1000, clock)


def took(activity: Activity, clock: Clock, work: Load | Run[Value], seconds: float) -> None:
    activity.begin(work, (), 0)
    clock.now += seconds
    activity.computed()
    assert activity.end(work, 0, 0)


def waited(activity: Activity, clock: Clock, key: Key | None, seconds: float) -> None:
    activity.waits(key, for_commit=key is None)
    clock.now += seconds
    if key is None:
        activity.heard_commit(0)
    else:
        activity.arrived(key, key.step)


@pytest.mark.parametrize("key", [GRADIENT, None])
@pytest.mark.parametrize("work", [LOAD, FORWARD])
def test_work_fits_into_a_wait_that_was_longer_before(
    activity: Activity, clock: Clock, key: Key | None, work: Load | Run[Value]
) -> None:
    took(activity, clock, work, 0.1)
    for seconds in (1.0, 0.5, 2.0):
        waited(activity, clock, key, seconds)
    activity.waits(key, for_commit=key is None)
    clock.now += 0.3
    assert activity.has_time_for(work)
    clock.now += 0.1
    assert not activity.has_time_for(work)


def test_nothing_fits_as_long_as_nothing_is_known(activity: Activity, clock: Clock) -> None:
    activity.waits(GRADIENT, for_commit=False)
    assert not activity.has_time_for(LOAD)
    clock.now += 1.0
    activity.arrived(GRADIENT, GRADIENT.step)
    activity.waits(GRADIENT, for_commit=False)
    assert not activity.has_time_for(LOAD), "nobody knows how long a load takes"
    took(activity, clock, LOAD, 0.1)
    assert activity.has_time_for(LOAD)
    activity.waits(None, for_commit=True)
    assert not activity.has_time_for(LOAD), "no wait for a commit is known"


def test_what_was_there_before_it_was_needed_leaves_no_room(activity: Activity, clock: Clock) -> None:
    took(activity, clock, LOAD, 0.1)
    waited(activity, clock, GRADIENT, 1.0)
    activity.arrived(GRADIENT, GRADIENT.step)
    activity.waits(GRADIENT, for_commit=False)
    assert not activity.has_time_for(LOAD)


def test_other_stages_have_other_waits(activity: Activity, clock: Clock) -> None:
    took(activity, clock, LOAD, 0.1)
    waited(activity, clock, GRADIENT, 1.0)
    activity.forget()
    activity.waits(GRADIENT, for_commit=False)
    assert not activity.has_time_for(LOAD)


def test_graphs_of_redundant_forwards_use_up_their_memory_within_a_step(activity: Activity) -> None:
    kept = []
    for step in (0, 0, 0, 1):
        activity.begin(FORWARD, (), 0)
        activity.computed()
        kept.append(activity.end(FORWARD, step, 400))
    assert kept == [True, True, False, True]


def test_a_heartbeat_tells_what_runs(activity: Activity) -> None:
    activity.begin(FORWARD, (), 0)
    assert activity.heartbeat().instruction == "1F0"
    activity.computed()
    activity.end(FORWARD, 0, 0)
    beat = activity.heartbeat()
    assert (beat.instruction, beat.finished) == ("", 1)


def test_a_heartbeat_tells_how_long_any_work_has_been_running(activity: Activity, clock: Clock) -> None:
    """A node that hung in what is no instruction looked as if it waited."""
    arrange = Arrange(layers=(), duties=(), stages=3, step=0, anew=False)
    apply: Apply[Value] = Apply(step=0, scale=1.0, gradients=())
    for work, name, median, samples in ((apply, "apply", 0.25, 8), (arrange, "arrange", 0.0, 0)):
        for _ in range(8):
            activity.begin(work, (), 0)
            clock.now += 0.25
            activity.computed()
            activity.end(work, 0, 0)
        activity.begin(work, (), 0)
        clock.now += 60.0
        beat = activity.heartbeat()
        told = (beat.instruction, beat.running_seconds, beat.median_seconds, beat.samples)
        assert told == (name, 60.0, median, samples), "one that builds layers takes another time each time"

"""How many tensor workers are wanted: it settles, noise moves nothing, and it keeps to the money."""

import random
from itertools import pairwise

import pytest

from culm.pipeline.errors import JobError
from culm.pipeline.tuning import WINDOWS, Limits, Tuning, Wanted, Window, tune

LATENCY = 0.02
HOLD = 0.18  # seconds a task keeps its worker: with the latency five tasks a second and worker
LIMITS = Limits(latency=LATENCY, worker_dollars=0.01, server_dollars=1.0)


def seen(workers: int, graph: float = 100.0, noise: float = 0.0, draw: random.Random | None = None) -> Window:
    """A run of 64 chunks whose graph work allows ``graph`` tasks a second, whatever the workers do. Ten seconds."""

    def about(x: float) -> float:
        return x * (draw or random).uniform(1 - noise, 1 + noise) if noise else x

    rate = about(min(graph, workers / (HOLD + LATENCY)))
    return Window(
        seconds=10.0,
        tasks=round(10 * rate),
        task_seconds=about(HOLD),
        waiting=about(max(0.0, 64 - workers)) if rate < 0.98 * graph else 0.0,
        idle_cores=min(1.0, max(0.0, about(1 - rate / graph))),
    )


def play(workers: int, windows: int, limits: Limits = LIMITS, graph: float = 100.0, noise: float = 0.0) -> list[Wanted]:
    state, draw, found = Tuning(workers=workers), random.Random(1), []
    for _ in range(windows):
        state, wanted = tune(state, seen(state.workers, graph, noise, draw), limits)
        assert wanted.workers == state.workers
        found.append(wanted)
    return found


@pytest.mark.parametrize("start", [1, 5, 20, 64, 500])
def test_it_comes_to_what_the_graph_work_needs_and_stays_there(start: int) -> None:
    found = play(start, 60)
    assert 20 <= found[-1].workers <= 34  # 20 can do all, if none ever waits
    assert {wanted.workers for wanted in found[-20:]} == {found[-1].workers}


@pytest.mark.parametrize("start", [5, 25, 200])
def test_noise_moves_nothing(start: int) -> None:
    found = play(start, 300, noise=0.15)
    settled = [wanted.workers for wanted in found[40:]]
    moves = sum(a != b for a, b in pairwise(settled))
    assert moves <= 4, settled
    assert 18 <= settled[-1] <= 40


def test_one_odd_window_moves_nothing() -> None:
    state = Tuning(workers=25)
    for _ in range(10):
        state, _ = tune(state, seen(25), LIMITS)
    odd = Window(seconds=10.0, tasks=900, task_seconds=HOLD, waiting=60.0, idle_cores=0.3)
    state, first = tune(state, odd, LIMITS)
    state, second = tune(state, seen(25), LIMITS)
    assert (first.workers, second.workers) == (25, 25)


def test_nothing_is_judged_before_it_has_had_its_windows() -> None:
    reasons = [wanted.reason for wanted in play(5, WINDOWS)]
    assert reasons[: WINDOWS - 1] == ["waiting for what this number of workers brings"] * (WINDOWS - 1)
    assert reasons[-1].startswith("59.0 tensor tasks wait, and graph cores stand idle 75 % of the time")


def test_it_shrinks_when_the_queues_are_empty() -> None:
    state = Tuning(workers=64)
    empty = Window(seconds=10.0, tasks=0, task_seconds=0.0, waiting=0.0, idle_cores=1.0)
    for _ in range(60):
        state, wanted = tune(state, empty, LIMITS)
    assert wanted.workers == 1


def test_it_grows_again_when_there_is_other_work() -> None:
    state = Tuning(workers=25)
    for _ in range(20):
        state, wanted = tune(state, seen(state.workers), LIMITS)
    for _ in range(60):
        state, wanted = tune(state, seen(state.workers, graph=300.0), LIMITS)
    assert 50 <= wanted.workers <= 80


def test_no_workers_are_wanted_that_graph_work_cannot_feed() -> None:
    busy = Window(seconds=10.0, tasks=100, task_seconds=1.0, waiting=50.0, idle_cores=0.01)
    state = Tuning(workers=10)
    for _ in range(10):
        state, wanted = tune(state, busy, LIMITS)
    assert wanted == Wanted(workers=10, reason="50.0 tensor tasks wait, but graph cores are busy 99 % of the time")


def test_growth_that_brings_nothing_is_taken_back_and_not_tried_for_ever() -> None:
    """The network is the narrow place: whatever the number, fifty tasks a second are done, and the rest waits."""
    state, found = Tuning(workers=10), []
    for _ in range(80):
        held = state.workers / 50 - LATENCY
        narrow = Window(seconds=10.0, tasks=500, task_seconds=held, waiting=64.0 - state.workers, idle_cores=0.5)
        state, wanted = tune(state, narrow, LIMITS)
        found.append(wanted)
    assert "20 workers did no more tasks a second than 10" in {wanted.reason for wanted in found}
    assert {wanted.workers for wanted in found[-20:]} == {10}


def test_workers_that_hold_each_other_up_go() -> None:
    """Forty are busy, half of the time with the network: from twenty on, more of them do no more."""
    state = Tuning(workers=40)
    limits = Limits(latency=0.0, worker_dollars=0.1, server_dollars=1.0, paid_idle=False)
    for _ in range(60):
        rate = min(state.workers, 20) * 5.0
        window = Window(
            seconds=10.0, tasks=round(10 * rate), task_seconds=state.workers / rate, waiting=0.0, idle_cores=0.5
        )
        state, wanted = tune(state, window, limits)
    assert 17 <= wanted.workers <= 22


def test_the_dollars_bound_it_at_once_and_for_ever() -> None:
    bound = Limits(latency=LATENCY, worker_dollars=0.01, server_dollars=1.0, dollars=0.08)
    found = play(64, 40, bound)
    assert {wanted.workers for wanted in found} == {8}
    assert found[0].reason == "64 workers cost more than 0.08 $ an hour allow"
    assert found[-1].reason.startswith("56.0 tensor tasks wait, but no more are allowed")


def test_workers_that_cost_more_than_they_save_are_not_wanted() -> None:
    """Servers at one cent an hour that wait for workers at a dollar: another worker costs more than it speeds up."""
    dear = Limits(latency=LATENCY, worker_dollars=1.0, server_dollars=0.01)
    state = Tuning(workers=10)
    for _ in range(12):
        state, wanted = tune(
            state, Window(seconds=10.0, tasks=500, task_seconds=HOLD, waiting=50.0, idle_cores=0.06), dear
        )
    assert wanted.workers == 10
    assert "more would cost more than they save" in wanted.reason


def test_the_least_and_the_most_are_kept() -> None:
    assert play(1, 1, Limits(least=4))[-1] == Wanted(workers=4, reason="4 are the least")
    assert play(9, 1, Limits(most=6))[-1] == Wanted(workers=6, reason="9 workers are more than the 6 that are allowed")
    with pytest.raises(JobError, match="between 3 and 2"):
        Limits(least=3, most=2)

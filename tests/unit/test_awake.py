"""What keeps the cores awake during a measurement makes room for everything else, and ends with it."""

import os

import psutil

from benchmarks.awake import awake_cores


def test_a_loop_of_the_lowest_priority_runs_on_every_core_and_ends_afterwards() -> None:
    with awake_cores() as loops:
        assert {frozenset(os.sched_getaffinity(pid)) for pid in loops} == {
            frozenset({core}) for core in os.sched_getaffinity(0)
        }
        assert {os.sched_getscheduler(pid) for pid in loops} == {os.SCHED_IDLE}
    assert not any(psutil.pid_exists(pid) for pid in loops)

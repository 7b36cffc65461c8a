"""Stages that share cores, in the order of their slack: the kernel runs a later one before an earlier one.

Of 1F1B the last stage is the one that never waits. Where every stage has cores of its own, nobody stands in line for
them; on a machine that all stages share, real-time priorities (root's to give) let the last one pass. Beside the same
run without them this tells how much of a step is waiting for a core.
"""

import os
from pathlib import Path


def allowed() -> bool:
    """Whether this process may give real-time priorities. Takes none."""
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, policy, parameter)
    return True


def later_first(pid: int, stage: int) -> None:
    """The threads of this process run before those of every earlier stage, and before all that has no priority."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(stage + 1))

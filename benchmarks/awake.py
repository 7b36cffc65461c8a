"""Cores that do not halt while short times are taken.

The host of a virtual machine gives a halted core to its other guests and takes a while to give it back, which is noise
in whatever is measured. So a loop of the lowest priority runs on every core meanwhile and makes room for anything else
at once, as the kernel's own ``idle=poll`` does for a whole machine. Both sides of a ratio get it alike.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def awake_cores() -> Iterator[list[int]]:
    """None of the cores that this process may run on halts. Gives the loops' process ids."""
    with ExitStack() as loops:
        started = []
        for core in sorted(os.sched_getaffinity(0)):
            words = [sys.executable, "-m", "benchmarks.awake", str(core)]
            loop = loops.enter_context(subprocess.Popen(words, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE))
            loops.callback(loop.kill)
            started.append(loop)
        for loop in started:
            assert loop.stdout is not None
            loop.stdout.readline()  # it is at its lowest priority now
        yield [loop.pid for loop in started]


def stay_awake(core: int) -> None:
    """Until the process that has started this one ends."""
    parent = os.getppid()
    os.setsid()
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):  # where each session has its share of the processor: the least one
        Path("/proc/self/autogroup").write_text("19")
    print(flush=True)
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


if __name__ == "__main__":
    stay_awake(int(sys.argv[1]))

"""What is spread over the processors of this machine ends with the one who asked for it, however that one ends."""

import os
import subprocess
import sys
import threading

import psutil

from culm.engines.spread import spread

HERE = "from tests.integration.test_spread import work; work()"


def at_work(_: int) -> None:
    os.write(sys.stdout.fileno(), b".")
    threading.Event().wait()


def work() -> None:
    with spread(processes=2) as each:
        list(each(at_work, range(2)))


def test_workers_of_a_killed_process_end() -> None:
    with subprocess.Popen([sys.executable, "-c", HERE], stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        asking.stdout.read(2)  # both are at work
        workers = psutil.Process(asking.pid).children(recursive=True)
        asking.kill()
    assert len(workers) >= 2
    _, left = psutil.wait_procs(workers, timeout=60.0)
    for worker in left:
        worker.kill()
    assert not left

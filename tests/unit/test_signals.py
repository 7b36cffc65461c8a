"""A node hears of SIGTERM whatever its main thread does."""

import subprocess
import sys
from pathlib import Path

WAITS = """
import os, signal, threading
from culm.stage_server.signals import on_signals
on_signals({signal.SIGTERM: lambda: os._exit(7)})
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # as if it had come just before the wait: nothing ends that
print("waits", flush=True)
threading.Event().wait()
"""


def test_a_signal_is_heard_while_nothing_wakes_the_main_thread() -> None:
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.terminate()
        assert process.wait(60.0) == 7

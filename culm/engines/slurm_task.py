"""What a job of Slurm runs on its machine: its coordinator, or a stage server."""

# A task hears SIGTERM for several reasons, and asks Slurm which one it is (``fate``):
#
#     Slurm                                     the task                        its stage server
#     preempts (slurm.conf: PreemptMode=REQUEUE, and the partition's GraceTime)
#       SIGTERM, to all of its processes or     tells the seconds of grace      hands over at the next commit, and ends
#         to the first one, as it is set up       in the notice's file
#       waits for GraceTime                     waits: one that ends now has
#                                                 ended for good
#       SIGKILL, and puts the task in the queue
#     ends it: scancel, scontrol requeue, the time limit
#       SIGTERM                                 the same                        the same
#       waits for KillWait                      ends: whether it is queued
#                                                 again is decided already
#     nothing: somebody has sent the signal     the same                        the same
#                                               starts its stage server again   joins as a node that holds nothing
#
# A stage server that hears of it twice, by a signal and by the notice, hands over once. ``culm down`` cancels the job,
# which begins with SIGTERM as well: the file ``down`` tells one from the other.

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import FrameType

from culm.engines.command import run
from culm.engines.services import DRAIN_SECONDS, StageServer, keep_coordinator, read_address
from culm.engines.slurm import COORDINATOR, DOWN, WHERE
from culm.pipeline.errors import JobError
from culm.terminal.outcome import RunFailed

ASK_SECONDS = 5.0
ENDING_SECONDS = 2.0  # of the grace, for a stage server that has handed over to end
NEAR_SECONDS = 300.0  # a task whose end is nearer than that is to go: by --signal, or by its time limit
POLL_SECONDS = 2.0  # each time Slurm's controller is asked


def grace_seconds() -> float | None:
    """How long this task stays after SIGTERM: its partition's GraceTime. None where there is none, or no answer."""
    words = ["scontrol", "show", "partition", os.environ.get("SLURM_JOB_PARTITION", ""), "--oneliner"]
    with suppress(JobError):
        if found := re.search(r"\bGraceTime=(\d+)\b", run(words, where=WHERE, mend="", seconds=ASK_SECONDS)):
            return float(found[1]) or None
    return None


def run_coordinator(folder: Path, host: str) -> int:
    """Until ``culm down``. One that Slurm takes goes on until it is killed, and is queued again."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set() if (folder / DOWN).exists() else None)
    try:
        keep_coordinator(folder, host, stop)
    except RunFailed as error:
        print(f"culm up: {error}", file=sys.stderr)
        return error.code
    return 0


class Fate(Enum):
    """What Slurm has in mind for a task that has heard SIGTERM."""

    STAYS = "nobody takes it"
    GOES = "Slurm will end it soon"
    ENDS = "Slurm is ending it"


def fate(shown: str, now: float) -> Fate:
    """Of a task that ``scontrol show job --oneliner`` shows so, with times in unix seconds."""
    told = dict(word.partition("=")[::2] for word in shown.split())
    if told.get("JobState") != "RUNNING":
        return Fate.ENDS
    end = told.get("EndTime", "")
    is_near = end.isdigit() and float(end) - now < NEAR_SECONDS
    return Fate.GOES if is_near or told.get("PreemptTime", "None") != "None" else Fate.STAYS


def await_fate(is_down: Callable[[], bool]) -> Fate:
    """Waits as long as Slurm is about to end this task, which may be until it is killed."""
    # By its place in the array: the number of the task itself may be that of the array, and mean all of them.
    task = f"{os.environ.get('SLURM_ARRAY_JOB_ID', '')}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
    words = ["scontrol", "show", "job", task, "--oneliner"]
    while not is_down():
        with suppress(JobError):  # the controller does not answer: it is asked again
            shown = run(words, where=WHERE, mend="", seconds=ASK_SECONDS, variables={"SLURM_TIME_FORMAT": "%s"})
            if (found := fate(shown, time.time())) is not Fate.GOES:
                return found
        time.sleep(POLL_SECONDS)
    return Fate.ENDS


class StageTask:
    """A stage server, until its run is over or Slurm ends this task."""

    def __init__(self, folder: Path) -> None:
        machine = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
        self._name = f"{machine}-{os.environ.get('SLURM_ARRAY_TASK_ID', '0')}"
        self._folder = folder
        self._grace = grace_seconds()
        self._server = self._make_server()
        signal.signal(signal.SIGTERM, self._hear)

    def run(self) -> int:
        while True:
            self._server.run()
            if not self._server.told or self._is_down() or await_fate(self._is_down) is not Fate.STAYS:
                return 0
            print(f"{self._name} has handed over after a SIGTERM, and starts again", file=sys.stderr, flush=True)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the next one is for the next server
            self._server = self._make_server()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _make_server(self) -> StageServer:
        return StageServer(
            self._folder,
            self._name,
            self._folder / f"{self._name}.log",
            address=lambda: read_address(self._folder),
            is_down=self._is_down,
            drain_seconds=max(1.0, self._grace - ENDING_SECONDS) if self._grace is not None else DRAIN_SECONDS,
        )

    def _is_down(self) -> bool:
        return (self._folder / DOWN).exists()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._is_down():
            self._server.stop()
        elif not self._server.told:
            self._server.notice(self._grace)


def main() -> int:
    part, folder = sys.argv[1], Path(sys.argv[2])
    return run_coordinator(folder, sys.argv[3]) if part == COORDINATOR else StageTask(folder).run()


if __name__ == "__main__":
    sys.exit(main())

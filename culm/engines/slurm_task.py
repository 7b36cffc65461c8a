"""What a job of Slurm runs on its machine: its coordinator, or a stage server."""

# Slurm takes a task's machine in this order (slurm.conf: PreemptMode=REQUEUE, and the partition's GraceTime):
#
#     Slurm                                     the task                        its stage server
#     SIGTERM, to all of the task's processes   tells the seconds of grace      hands over at the next commit, and ends
#       or to the first one, as it is set up      in the notice's file
#     waits for GraceTime                       waits: one that ends now has
#                                                 ended for good
#     SIGKILL, and puts the task in the queue
#
# A stage server that hears of it twice, by a signal and by the notice, hands over once. ``culm down`` cancels the job,
# which begins with SIGTERM as well: the file ``down`` tells one from the other.

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from culm.engines.services import DRAIN_SECONDS, StageServer, keep_coordinator, read_address
from culm.engines.slurm import COORDINATOR, DOWN
from culm.terminal.outcome import RunFailed

ASK_SECONDS = 5.0
ENDING_SECONDS = 2.0  # of the grace, for a stage server that has handed over to end
POLL_SECONDS = 0.5


def grace_seconds() -> float | None:
    """How long this task stays after SIGTERM: its partition's GraceTime. None where there is none, or no answer."""
    words = ["scontrol", "show", "partition", os.environ.get("SLURM_JOB_PARTITION", ""), "--oneliner"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(words, capture_output=True, text=True, timeout=ASK_SECONDS)
        if found := re.search(r"\bGraceTime=(\d+)\b", done.stdout):
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


def run_stage(folder: Path) -> int:
    """Until its run is over; after a notice until Slurm ends it."""
    machine = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    name = f"{machine}-{os.environ.get('SLURM_ARRAY_TASK_ID', '0')}"
    grace = grace_seconds()
    taken = False
    server = StageServer(
        folder,
        name,
        folder / f"{name}.log",
        address=lambda: read_address(folder),
        is_down=(folder / DOWN).exists,
        drain_seconds=max(1.0, grace - ENDING_SECONDS) if grace is not None else DRAIN_SECONDS,
    )

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal taken
        if (folder / DOWN).exists():
            server.stop()
        elif not taken:
            taken = True
            server.notice(grace)

    signal.signal(signal.SIGTERM, take)
    server.run()
    while taken and not (folder / DOWN).exists():
        time.sleep(POLL_SECONDS)
    return 0


def main() -> int:
    part, folder = sys.argv[1], Path(sys.argv[2])
    return run_coordinator(folder, sys.argv[3]) if part == COORDINATOR else run_stage(folder)


if __name__ == "__main__":
    sys.exit(main())

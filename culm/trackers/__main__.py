"""Writes a run's numbers to one tracker: ``culm events --json --follow | python -m culm.trackers tensorboard FOLDER``.

A coordinator runs one of these for each tracker that its job names. It reads events from its standard input, and ends
with it.
"""

import argparse
import fcntl
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from culm.pipeline.errors import JobError
from culm.pipeline.money.codec import Entry, Reader, of_lines
from culm.pipeline.money.kinds import Done, RolledBack
from culm.trackers.scalars import Scalars
from culm.trackers.tracker import TrackedRun, Tracker

# Of each: the module, and the class in it. A module imports what its extra of Culm installs, and so is imported late.
TRACKERS = {
    "tensorboard": ("culm.trackers.tensorboard", "TensorBoard"),
    "trackio": ("culm.trackers.trackio", "Trackio"),
    "wandb": ("culm.trackers.wandb", "WeightsAndBiases"),
    "mlflow": ("culm.trackers.mlflow", "MLflow"),
}
CLOSING_SECONDS = 10.0  # for what is still to be sent once the coordinator is gone


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Waits for a process of this machine that writes of the same run: it writes what its coordinator told it last."""
    with Path(tempfile.gettempdir(), f"culm-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def opened(kind: str, where: str, run: TrackedRun) -> Tracker:
    """Raises JobError where the tracker is not installed."""
    module, name = TRACKERS[kind]
    try:
        make: Callable[[str, TrackedRun], Tracker] = getattr(import_module(module), name)
    except ImportError as error:
        raise JobError(f"it cannot be imported ({error})", f"track.{kind}", f"pip install 'culm[{kind}]'") from error
    return make(where, run)


def follow(lines: Iterable[str], tracker: Tracker) -> bool:
    """Writes what the events say, until there are no more. Whether the run is done then."""
    done = False
    scalars, reader = Scalars(tracker.newest), Reader("what is tracked")
    for event in of_lines(lines, "the events"):
        found: list[Entry] = []
        if reader.read(event, found.append) and (numbers := scalars.of(found[0])):
            tracker.write(numbers)
        done = (done or event.kind == Done.kind) and event.kind != RolledBack.kind
    return done


def end_with(parent: int) -> None:
    """Ends this process some time after its parent, whatever it waits for."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(CLOSING_SECONDS)
    os._exit(1)


def main() -> int:
    """The exit code: 0 once the events are over, 1 where the tracker has failed, 2 where it is not installed."""
    parser = argparse.ArgumentParser(prog="python -m culm.trackers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=TRACKERS)
    parser.add_argument("where", help="a folder, a project, or a tracking URI")
    parser.add_argument("--id", default="culm", help="names the run: the same for all who write of it")
    parser.add_argument("--name", default="culm", help="the job's name")
    parser.add_argument("--config", default="{}", help="the job, as JSON")
    arguments = parser.parse_args()
    # Ctrl-C reaches all processes of a terminal. What the run still says is to be written, and then this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with, args=[os.getppid()], daemon=True).start()
    run = TrackedRun(id=arguments.id, name=arguments.name, config=json.loads(arguments.config))
    try:
        with alone(f"{arguments.kind}-{run.id}"):
            tracker = opened(arguments.kind, arguments.where, run)
            tracker.close(follow(sys.stdin, tracker))
    except JobError as error:
        print(error, file=sys.stderr)
        return 2
    except Exception as error:  # of a tracker: its server is away, its disk is full
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())  # trackers leave threads behind, some of which wait for their servers

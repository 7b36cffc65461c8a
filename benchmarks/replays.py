"""The simulator against real processes: ``python -m benchmarks.replays TRACE`` writes ``benchmarks/replays.json``.

Three replays of paced layers: calm; the trace 100 times as fast; one node lost about every 20 steps. The simulator's
figures are worked out before the processes start.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.paced import BACKWARD, FORWARD, job_file
from culm.commands.profile import ROUNDS, measure
from culm.commands.replay import LOCAL, Happened, drive, predict
from culm.pipeline.job import load_job
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change, read_trace

RESULTS = Path(__file__).with_name("replays.json")
STAGES, MICROBATCHES, MACHINES = 4, 8, 6
SPEED = 100.0
SECONDS = 100.0  # of each replay


def calm() -> list[Change]:
    return [Change(at=0.0, kind="add", node=f"m{i}") for i in range(MACHINES)]


def regular() -> list[Change]:
    """A node is lost about every 20 steps, and another machine a second later."""
    every = 20 * (MICROBATCHES + STAGES - 1) * (FORWARD + BACKWARD) * 1.08
    changes = calm()
    for number in range(int((SECONDS - 5.0) / every)):
        at = (number + 1) * every
        changes += [
            Change(at=at, kind="remove", node=f"m{number}"),
            Change(at=at + 1.0, kind="add", node=f"m{MACHINES + number}"),
        ]
    return changes


def fast(path: str) -> list[Change]:
    """The trace's first hours."""
    found = (replace(change, at=change.at / SPEED) for change in read_trace(path))
    return [change for change in found if change.at <= SECONDS]


def replayed(name: str, changes: list[Change]) -> dict[str, Any]:
    """What was predicted, and what happened."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"stages": STAGES, "microbatches": MICROBATCHES, "forward": FORWARD, "backward": BACKWARD}
        path = job_file(Path(folder), **settings, steps=100_000, redundancy="lazy")
        job = load_job(path)
        here = sum(change.at == 0.0 for change in changes)
        choice = Choice(redundancy="lazy", machines=MACHINES, begins_with=min(MACHINES, here))
        predicted = predict(changes, measure(job, ROUNDS), LOCAL, choice, SECONDS)
        measured = drive(job, Path(folder), changes, LOCAL, choice, SECONDS)
    for what, one, other in zip(Happened.__slots__, asdict(predicted).values(), asdict(measured).values(), strict=True):
        off = f"{one / other - 1.0:+.1%}" if other else ""
        print(f"{name}: {what:10} predicted {one:10.4g}  measured {other:10.4g}  {off}", flush=True)
    return {"predicted": asdict(predicted), "measured": asdict(measured)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", metavar="FILE", help="whose first hours are replayed")
    arguments = parser.parse_args()
    results = {
        "calm": replayed("calm", calm()),
        f"{Path(arguments.trace).name}, {SPEED:g} times as fast": replayed("trace", fast(arguments.trace)),
        "a lost node every 20 steps": replayed("regular", regular()),
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The simulator against real processes: ``python -m benchmarks.replays TRACE`` writes ``benchmarks/replays.json``.

Five replays of paced layers, the first two with one pipeline in four stages on six nodes:

- calm: nothing happens;
- the trace, 100 times as fast;
- bulks: two zones of four nodes; half of one zone goes at once, three times, and comes back a few seconds later;
- four pipelines: two replicas of four stages, five lost nodes one by one, each replaced a second later;
- shrinking and growing: four pipelines on eight nodes, of which three go, one more goes, and five come back.

The simulator's figures are worked out before the processes of a replay start. How long a start takes is rehearsed.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.paced import job_file
from culm.commands.profile import ROUNDS, measure
from culm.local.played_market import Happened, choice_of, drive, predict, rehearsed
from culm.pipeline.job import load_job
from culm.simulator.markets.trace import Change, hastened, read_trace

RESULTS = Path(__file__).with_name("replays.json")
FORWARD, BACKWARD = 0.02, 0.04  # seconds of a microbatch on a fourth of the model: long against what two cores disturb
SPEED = 100.0
SECONDS = 100.0  # of each replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """``layers``: equal ones, that take FORWARD and BACKWARD on a fourth of them."""

    changes: Sequence[Change]
    machines: int
    layers: int = 4
    pipelines: int = 1
    microbatches: int = 8


def _coming(names: Sequence[str], at: float = 0.0, zones: str = "") -> list[Change]:
    zoned = {name: zones[i % len(zones)] if zones else "" for i, name in enumerate(names)}
    return [Change(at=at, kind="add", node=name, zone=zone) for name, zone in zoned.items()]


def _going(names: Sequence[str], at: float) -> list[Change]:
    return [Change(at=at, kind="remove", node=name) for name in names]


def _named(first: int, end: int) -> list[str]:
    return [f"m{i}" for i in range(first, end)]


def calm() -> Replay:
    return Replay(changes=_coming(_named(0, 6)), machines=6)


def fast(path: str) -> Replay:
    """The trace's first hours."""
    changes = [change for change in hastened(read_trace(path), SPEED) if change.at <= SECONDS]
    return Replay(changes=changes, machines=6)


def bulks() -> Replay:
    """The machines with even numbers are in zone a."""
    changes = _coming(_named(0, 8), zones="ab")
    gone = [("m0", "m2"), ("m4", "m6"), ("m1", "m3")]
    for number, names in enumerate(gone):
        at = 20.0 + 25.0 * number
        back = _named(8 + 2 * number, 10 + 2 * number)
        changes += [*_going(names, at), *_coming(back, at + 5.0, zones="aab"[number])]
    return Replay(changes=changes, machines=8)


def grid() -> Replay:
    changes = _coming(_named(0, 8))
    for number in range(5):
        at = 12.0 + 17.0 * number
        changes += [*_going([f"m{number}"], at), *_coming([f"m{8 + number}"], at + 1.0)]
    return Replay(changes=changes, machines=8, pipelines=4, microbatches=2)


def breathing() -> Replay:
    changes = [
        *_coming(_named(0, 8)),
        *_going(_named(5, 8), 20.0),
        *_going(["m4"], 40.0),
        *_coming(_named(8, 13), 60.0),
    ]
    return Replay(changes=changes, machines=8, layers=8, pipelines=4, microbatches=2)


def replayed(name: str, replay: Replay, seconds: float) -> dict[str, Any]:
    """What was predicted, and what happened."""
    with tempfile.TemporaryDirectory() as folder:
        share = 4 / replay.layers
        settings = {"stages": replay.layers, "microbatches": replay.microbatches}
        pace = {"forward": FORWARD * share, "backward": BACKWARD * share}
        path = job_file(Path(folder), **settings, **pace, steps=100_000, redundancy="lazy")
        job = load_job(path, [f"pipeline.pipelines={replay.pipelines}", "pipeline.stages=4"])
        here = sum(change.at == 0.0 for change in replay.changes)
        choice = choice_of(job, replay.machines, min(replay.machines, here))
        profile, cluster = measure(job, ROUNDS), rehearsed(job, Path(folder), choice.begins_with)
        predicted = predict(replay.changes, profile, cluster, choice, seconds)
        before = os.getloadavg()[0]
        measured = drive(job, Path(folder), replay.changes, cluster, choice, seconds)
        load = (before, os.getloadavg()[0])
    for what, one, other in zip(Happened.__slots__, asdict(predicted).values(), asdict(measured).values(), strict=True):
        off = f"{one / other - 1.0:+.1%}" if other else ""
        print(f"{name}: {what:10} predicted {one:10.4g}  measured {other:10.4g}  {off}", flush=True)
    print(f"{name}: load {load[0]:.1f} before, {load[1]:.1f} after", flush=True)
    return {"predicted": asdict(predicted), "measured": asdict(measured), "load": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", metavar="FILE", help="whose first hours are replayed")
    parser.add_argument("--only", default="", metavar="NAME", help="calm, trace, bulks, grid or breathing")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each replay")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    replays: dict[str, tuple[str, Callable[[], Replay]]] = {
        "calm": ("calm", calm),
        "trace": (f"{Path(arguments.trace).name}, {SPEED:g} times as fast", lambda: fast(arguments.trace)),
        "bulks": ("bulks in a zone", bulks),
        "grid": ("four pipelines, a lost node every 17 s", grid),
        "breathing": ("shrinking and growing", breathing),
    }
    for key, (name, made) in replays.items():
        if arguments.only in ("", key):
            results[name] = replayed(key, made(), arguments.seconds)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

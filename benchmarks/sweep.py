"""The sweep of Bamboo's paper with every strategy on 48 machines: ``python -m benchmarks.sweep``.

Machines go within an hour with a probability of 0.01 to 0.90, in as many random markets as there are seeds. It writes
``benchmarks/sweep.json`` as it goes; begun again it goes on where it was. Nothing is timed: the same seeds give the
same figures anywhere.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.strategies import ALL, MACHINES, STRATEGIES, WORKLOADS, figures
from culm.engines.spread import HELP, PROCESSES, WAYS, spread
from culm.simulator.markets.random_market import HOUR, hourly

RESULTS = Path(__file__).with_name("sweep.json")
PROBABILITIES = (0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90)
SEEDS = {"bert": 400, "gpt2": 400}  # as published; 50 of the others
OTHERS = 50
# Of each market: no run but GPT-2's is as long. That has eight times as many steps, and is looked at for a day.
HOURS = {"gpt2": 24}
LONG = 400
SAVED_EVERY = 20.0  # seconds

Cells = dict[str, dict[str, dict[str, Any]]]  # "bert 0.10" -> strategy -> what ``add`` keeps


class Task(NamedTuple):
    """One market: all that is missing of it."""

    workload: str
    probability: float
    seed: int
    strategies: tuple[str, ...]

    @property
    def cell(self) -> str:
        return f"{self.workload} {self.probability:.2f}"


def run(task: Task) -> tuple[Task, dict[str, dict[str, float]]]:
    """What each of the strategies comes to in this market."""
    hours = HOURS.get(task.workload, LONG)
    work = WORKLOADS[task.workload]
    changes = hourly(task.seed, MACHINES, task.probability, hours)
    return task, {name: figures(ALL[name](changes, work, hours * HOUR)) for name in task.strategies}


def add(cells: Cells, task: Task, found: Mapping[str, Mapping[str, float]]) -> None:
    """Sums and squares, seed by seed in order: so an interrupted sweep comes to the same as one that was not."""
    for strategy, values in found.items():
        kept = cells.setdefault(task.cell, {}).setdefault(strategy, {"seeds": 0, "sum": {}, "squares": {}})
        assert kept["seeds"] == task.seed - 1, f"{task} is not the next one"
        kept["seeds"] = task.seed
        for name, value in values.items():
            kept["sum"][name] = kept["sum"].get(name, 0.0) + value
            kept["squares"][name] = kept["squares"].get(name, 0.0) + value * value


def mean(kept: Mapping[str, Any], name: str) -> float:
    return float(kept["sum"][name]) / int(kept["seeds"])


def deviation(kept: Mapping[str, Any], name: str) -> float:
    """Of single runs; 0.0 of one."""
    seeds = int(kept["seeds"])
    if seeds < 2:
        return 0.0
    return sqrt(max(0.0, (kept["squares"][name] - kept["sum"][name] ** 2 / seeds) / (seeds - 1)))


def missing(
    cells: Cells, workloads: list[str], probabilities: list[float], seeds: int, only: list[str]
) -> Iterator[Task]:
    """What is left to do: one seed of every cell, then the next one of all."""
    most = {name: min(seeds, SEEDS.get(name, OTHERS)) if seeds else SEEDS.get(name, OTHERS) for name in workloads}
    for seed in range(1, max(most.values()) + 1):
        for probability in probabilities:
            for workload in workloads:
                done = cells.get(f"{workload} {probability:.2f}", {})
                left = tuple(name for name in only if done.get(name, {}).get("seeds", 0) < seed <= most[workload])
                if left:
                    yield Task(workload, probability, seed, left)


def read() -> Cells:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write(cells: Cells) -> None:
    """Whole or not at all: a sweep may be ended at any moment."""
    fresh = RESULTS.with_suffix(".new")
    fresh.write_text(json.dumps(cells, indent=1, sort_keys=True) + "\n")
    fresh.replace(RESULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--probabilities", type=float, nargs="+", default=PROBABILITIES, metavar="P")
    parser.add_argument("--seeds", type=int, default=0, help="at most; default: as many as were published")
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(STRATEGIES))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--on", choices=WAYS, default=PROCESSES, help=HELP)
    parser.add_argument("--anew", action="store_true", help="forget what is there")
    arguments = parser.parse_args()
    cells: Cells = {} if arguments.anew else read()
    tasks = list(missing(cells, arguments.workloads, arguments.probabilities, arguments.seeds, arguments.only))
    saved = time.monotonic()
    with spread(arguments.on, processes=arguments.processes) as each:
        for done, (task, found) in enumerate(each(run, tasks), 1):
            add(cells, task, found)
            print(f"{done} of {len(tasks)}: {task.cell}, seed {task.seed}", flush=True)
            if time.monotonic() - saved > SAVED_EVERY:
                write(cells)
                saved = time.monotonic()
    write(cells)


if __name__ == "__main__":
    main()

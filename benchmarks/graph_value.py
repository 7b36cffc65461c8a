"""What a dollar buys on graphs: ``python -m benchmarks.graph_value`` writes its results and docs/graphs_value.md.

Everything is simulated, nothing is timed: the same figures each time. It takes less than a minute.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from culm.engines.spread import spread
from culm.simulator.graphs.epochs import Epochs
from culm.simulator.graphs.hardware import GBIT, cpu_server, function, gpu_server
from culm.simulator.graphs.published import JOBS, GraphJob
from culm.simulator.graphs.sampling import sampled
from culm.simulator.graphs.settings import Assumptions, cpu, gpu, workers

RESULTS = Path(__file__).with_name("graph_value.json")
BASE = Assumptions()
FEWER = replace(BASE, simulated=1)  # where many variants are played
Figures = dict[str, Any]

# Each way to train, as the page's tables name it.
WAYS: Mapping[str, Callable[[GraphJob, Assumptions], Epochs]] = {
    "CPU servers, S = 0": lambda job, given: cpu(job, 0, given),
    "CPU servers, S = 1": lambda job, given: cpu(job, 1, given),
    "GPU servers, S = 0": lambda job, given: gpu(job, 0, given),
    "GPU servers, S = 1": lambda job, given: gpu(job, 1, given),
    "with workers, S = 0": lambda job, given: workers(job, 0, given),
    "with workers, S = 1": lambda job, given: workers(job, 1, given),
}
CPU, GPU, WORKERS = "CPU servers, S = 0", "GPU servers, S = 0", "with workers, S = 1"
CPU_AHEAD = "CPU servers, S = 1"

# One assumption is changed at a time. The second is a change of the graph itself.
VARIANTS: Mapping[str, tuple[Assumptions, float]] = {
    "as above": (FEWER, 1.0),
    "workers begin at once": (replace(FEWER, worker=function(latency=0.0)), 1.0),
    "workers begin after 100 ms": (replace(FEWER, worker=function(latency=0.1)), 1.0),
    "workers begin after 500 ms": (replace(FEWER, worker=function(latency=0.5)), 1.0),
    "a worker's network does 0.2 Gbit/s, not 0.6": (
        replace(FEWER, worker=replace(function(), network=0.2 * GBIT)),
        1.0,
    ),
    "servers' networks do 40 %, as they do for long": (replace(FEWER, network=0.4), 1.0),
    "workers of 1769 MB, not 192": (replace(FEWER, worker=function(1769)), 1.0),
    "a quarter of the edges": (FEWER, 0.25),
    "four times the edges": (FEWER, 4.0),
    "5 % of the edges lie between servers, not 20 %": (replace(FEWER, apart=0.05), 1.0),
    "50 % of the edges lie between servers": (replace(FEWER, apart=0.5), 1.0),
    "32 chunks a server, not 128": (replace(FEWER, chunks=32), 1.0),
    "sums of features are kept from epoch to epoch": (replace(FEWER, features_gathered=False), 1.0),
    "gathers at a quarter of the rate, as torch's here": (replace(FEWER, adds=0.25), 1.0),
    "servers' CPUs do products at a quarter of the rate": (replace(FEWER, operations=0.25), 1.0),
    "functions cost half as much": (
        replace(FEWER, worker=replace(function(), per_gb_second=function().per_gb_second / 2)),
        1.0,
    ),
    "the last two at once": (
        replace(FEWER, operations=0.25, worker=replace(function(), per_gb_second=function().per_gb_second / 2)),
        1.0,
    ),
}
VARIED = ("GCN Amazon", "GAT Amazon")
COUNTED = ("GCN Amazon", "GCN Friendster")
COUNTS = (4, 8, 16, 32, 64, 100)  # workers of a server


def figures(found: Epochs) -> Figures:
    return {
        "seconds": round(found.seconds, 6),
        "dollars": round(found.dollars, 8),
        "workers": found.workers,
        "busy": round(found.busy_workers, 2),
        "cores": round(found.busy_cores, 4),
        "calls": round(found.calls),
        "moves": moves(found),
    }


def moves(found: Epochs) -> list[tuple[int, int, str]]:
    """Epoch, number and reason of each change of the number of workers."""
    return [
        (epoch + 1, after.workers, after.reason)
        for epoch, (before, after) in enumerate(pairwise(found.decisions), start=1)
        if after.workers != before.workers
    ]


def play(task: tuple[str, str, str]) -> Figures:
    """Of one table, one job and one row."""
    table, name, row = task
    job = JOBS[name]
    if table == "ways":
        return figures(WAYS[row](job, BASE))
    if table == "counts":
        return figures(workers(job, 1, FEWER, each=int(row)))
    way, variant = row.split(": ", 1)
    given, edges = VARIANTS[variant]
    return figures(WAYS[way](replace(job, edges=job.edges * edges), given))


def samples() -> Figures:
    """By job and system: on the machines that the published costs come to."""
    small, amazon = JOBS["GCN Reddit-small"], JOBS["GCN Amazon"]
    rows = (
        (small, "DGL, on p3", sampled(small, gpu_server(), 1)),
        (amazon, "DGL, on p3", sampled(amazon, gpu_server(), amazon.servers)),
        (amazon, "AliGraph, on c5n", sampled(amazon, cpu_server(amazon.instance_type), amazon.servers)),
    )
    return {
        f"{job.name}: {system}": {
            "seconds": round(found.seconds, 4),
            **{k: round(v, 6) for k, v in asdict(found).items()},
        }
        for job, system, found in rows
    }


def tasks() -> list[tuple[str, str, str]]:
    found = [("ways", name, way) for name in JOBS for way in WAYS]
    found += [("counts", name, str(each)) for name in COUNTED for each in COUNTS]
    found += [
        ("variants", name, f"{way}: {variant}")
        for name in VARIED
        for variant in VARIANTS
        for way in (CPU, GPU, WORKERS)
    ]
    return found


def results() -> dict[str, Any]:
    """Everything that the page tells."""
    found: dict[str, Any] = {"ways": {}, "counts": {}, "variants": {}}
    with spread() as each:
        for (table, name, row), played in zip(tasks(), each(play, tasks()), strict=True):
            found[table].setdefault(name, {})[row] = played
    return {**found, "samples": samples()}


def main() -> None:
    from benchmarks.graph_value_page import write

    RESULTS.write_text(json.dumps(results(), indent=1) + "\n")
    write()


if __name__ == "__main__":
    main()

"""The sweep of Bamboo's paper, with Culm beside it: ``python -m benchmarks.sweep`` writes ``benchmarks/sweep.json``.

Machines go within an hour with a probability of 0.01 to 0.50, in as many random markets as there are seeds; BERT as
published, to the end of its run. Nothing is timed: the same seeds give the same figures anywhere.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from culm.engines.spread import HELP, PROCESSES, WAYS, spread
from culm.simulator.markets.account import Row
from culm.simulator.markets.bamboo import Bamboo
from culm.simulator.markets.compare import culm
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.other_systems import CHECKPOINTS, Peer, on_demand
from culm.simulator.markets.random_market import HOUR, hourly
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import PUBLISHED

RESULTS = Path(__file__).with_name("sweep.json")
PROBABILITIES = (0.01, 0.05, 0.10, 0.25, 0.50)
BERT = PUBLISHED["bert"]
HOURS = 400  # of each market: no run is as long
# What Bamboo's released simulator gave over 400 seeds: samples/s, $/h, value.
RELEASED = {
    0.01: (149.0, 39.8, 3.70),
    0.05: (137.0, 38.5, 3.51),
    0.10: (132.0, 37.0, 3.54),
    0.25: (115.0, 32.1, 3.55),
    0.50: (83.0, 24.5, 3.31),
}
COLUMNS = ("throughput", "cost_per_hour", "value", "fatal", "nodes", "preemptions", "interval_hours", "lifetime_hours")

STRATEGIES: dict[str, Callable[[Sequence[Change]], Row]] = {
    "checkpoint and restart": lambda changes: Peer(changes, BERT, CHECKPOINTS).run(HOURS * HOUR),
    "bamboo, as published": lambda changes: Bamboo(changes, BERT).run(),
    "bamboo, with lost work": lambda changes: Bamboo(changes, BERT, charges_preemptions=True).run(),
    "culm, lazy": lambda changes: culm(changes, BERT, Cluster(), "lazy").run(),
    "culm, off": lambda changes: culm(changes, BERT, Cluster(), "off").run(),
}


def run(strategies: Sequence[str], probability: float, seed: int) -> dict[str, Row]:
    """One market, a row for each strategy."""
    changes = hourly(seed, BERT.machines, probability, HOURS)
    return {name: STRATEGIES[name](changes) for name in strategies}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over the seeds, and the standard deviation of each column."""
    values = {column: [float(getattr(row, column)) for row in rows] for column in COLUMNS}
    means = {column: round(mean(found), 4) for column, found in values.items()}
    spreads = {column: round(stdev(found), 4) if len(found) > 1 else 0.0 for column, found in values.items()}
    return {"seeds": len(rows), "mean": means, "deviation": spreads}


def table(results: dict[str, Any]) -> str:
    """The sweep in Markdown, beside what was released, and what each strategy is of the two that it is held against:
    throughput of checkpoint and restart, samples for a dollar of on-demand machines.
    """
    bought = on_demand(BERT, HOUR).value
    lines = [
        "| hourly | strategy | samples/s | $/h | value | fatal | throughput of checkpoints | of on-demand's value |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for probability, found in sorted(results.items()):
        slow = found.get("checkpoint and restart", {}).get("mean", {}).get("throughput", 0.0)
        for name, told in found.items():
            mean_of, spread = told["mean"], told["deviation"]
            faster = f"{mean_of['throughput'] / slow:.2f}" if slow else ""
            lines.append(
                f"| {probability} | {name} | {mean_of['throughput']:.1f} ± {spread['throughput']:.1f} | "
                f"{mean_of['cost_per_hour']:.2f} | {mean_of['value']:.2f} ± {spread['value']:.2f} | "
                f"{mean_of['fatal']:.2f} | {faster} | {mean_of['value'] / bought:.2f} |"
            )
        if float(probability) in RELEASED:
            rate, cost, value = RELEASED[float(probability)]
            figures = f"{rate:.0f} | {cost:.1f} | {value:.2f}"
            lines.append(f"| {probability} | Bamboo's released simulator | {figures} | | | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--probabilities", type=float, nargs="+", default=PROBABILITIES, metavar="P")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--on", choices=WAYS, default=PROCESSES, help=HELP)
    parser.add_argument("--only", nargs="+", choices=STRATEGIES, default=list(STRATEGIES)[:4])
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with spread(arguments.on, processes=arguments.processes) as each:
        for probability in arguments.probabilities:
            found: dict[str, list[Row]] = {name: [] for name in arguments.only}
            seeds = range(1, arguments.seeds + 1)
            for done, rows in enumerate(each(partial(run, arguments.only, probability), seeds), 1):
                for name, row in rows.items():
                    found[name].append(row)
                print(f"\r{probability:.2f}: {done} of {len(seeds)} markets", end="", flush=True)
            print()
            for name, all_rows in found.items():
                told = results.setdefault(f"{probability:.2f}", {})[name] = summary(all_rows)
                means = told["mean"]
                line = (
                    f"{means['throughput']:6.1f} samples/s {means['cost_per_hour']:6.2f} $/h value {means['value']:.2f}"
                )
                print(f"  {name:24} {line}, {means['fatal']:.2f} fatal")
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()

"""Traces under every strategy: ``python -m benchmarks.traces FILE...`` writes ``traces.json`` and ``traces.svg`` here.

Nothing is timed: the same traces give the same figures anywhere.
"""

import argparse
import json
from pathlib import Path

from culm.simulator.markets.account import Row
from culm.simulator.markets.compare import as_json, rows
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.picture import draw
from culm.simulator.markets.trace import read_trace
from culm.simulator.markets.workload import PUBLISHED

RESULTS = Path(__file__).with_name("traces.json")
PICTURE = Path(__file__).with_name("traces.svg")


def simulated(path: str, model: str) -> list[Row]:
    """A row for each strategy over the whole trace."""
    changes = read_trace(path)
    found: list[Row] = []
    for row in rows(changes, PUBLISHED[model], changes[-1].at, Cluster()):
        found.append(row)
        print(f"  {row.strategy:26} {row.throughput:7.1f} samples/s {row.cost_per_hour:6.2f} $/h value {row.value:.2f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE")
    parser.add_argument("--model", choices=PUBLISHED, default="bert")
    arguments = parser.parse_args()
    results: dict[str, list[Row]] = {}
    for path in arguments.traces:
        print(Path(path).name)
        results[Path(path).name] = simulated(path, arguments.model)
    told = {name: as_json(found) for name, found in results.items()}
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    PICTURE.write_text(draw(results))


if __name__ == "__main__":
    main()

"""Every strategy on 48 machines over traces: ``python -m benchmarks.traces`` writes ``benchmarks/traces.json``.

The traces are the files of the folder that ``CULM_TRACES`` names. Two drawn markets are always among them: machines
that go one by one, and half a zone at once. Begun again it goes on where it was. Nothing is timed.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.strategies import ALL, MACHINES, WORKLOADS, figures
from culm.simulator.markets.random_market import HOUR, Zone, zoned
from culm.simulator.markets.trace import Change, at_most, read_trace
from culm.simulator.markets.workload import SPOT

RESULTS = Path(__file__).with_name("traces.json")
DRAWN_HOURS = 12.0


def drawn(bulk_per_hour: float) -> list[Change]:
    """48 machines in four zones, each lost about every ten hours; sometimes half a zone goes at once as well."""
    zones = [
        Zone(
            name=name,
            machines=MACHINES // 4,
            price=SPOT,
            lost_per_hour=0.10,
            bulk_per_hour=bulk_per_hour,
            bulk_share=0.5,
            wait_seconds=900.0,
        )
        for name in "abcd"
    ]
    return zoned(1, zones, DRAWN_HOURS * HOUR)


def markets() -> Iterator[tuple[str, Sequence[Change]]]:
    """By name: the files of CULM_TRACES, then what is drawn."""
    folder = os.environ.get("CULM_TRACES")
    for path in sorted(Path(folder).iterdir()) if folder else ():
        if path.suffix in (".csv", ".txt", ".jsonl"):
            yield path.name, read_trace(path)
    yield "drawn, one by one", drawn(0.0)
    yield "drawn, in bulk", drawn(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--anew", action="store_true", help="forget what is there")
    arguments = parser.parse_args()
    there = RESULTS.exists() and not arguments.anew
    results: dict[str, dict[str, dict[str, float]]] = json.loads(RESULTS.read_text()) if there else {}
    given = [(name, at_most(changes, MACHINES)) for name, changes in markets()]
    for workload in arguments.workloads:
        for name, changes in given:
            found = results.setdefault(f"{workload} {name}", {})
            for strategy, run in ALL.items():
                if strategy not in found:
                    row = run(changes, WORKLOADS[workload], changes[-1].at)
                    found[strategy] = {key: round(value, 4) for key, value in figures(row).items()}
                    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{workload} {name}", flush=True)


if __name__ == "__main__":
    main()

"""How often all copies of a stage go at once: ``python -m benchmarks.copies FILE...`` prints it for 2, 3, 4 and "auto".

"auto, given half" is given the trace's first half before it begins, as a run is that goes on from the day before.

One pipeline whose stages are held by their owner and the nodes before it, over each trace, zones unknown; as many draws
of which node holds what as there are seeds. Nothing is timed: the same seeds give the same figures anywhere.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from culm.coordinator.copies import MOST_ROLLBACKS
from culm.coordinator.state import NOTHING_BEFORE, BulksBefore
from culm.simulator.markets.chain_of_copies import AUTO, HOUR, Chain, Outcome
from culm.simulator.markets.trace import Change, bulks_before, read_trace

SEEDING = (2.0, 60.0)  # seconds until a new copy is whole


def outcomes(
    changes: Sequence[Change], copies: int, seeding: float, seeds: int, before: BulksBefore = NOTHING_BEFORE
) -> list[Outcome]:
    """A run for each seed."""
    runs = (Chain(changes=changes, copies=copies, seed=seed, seeding=seeding, before=before) for seed in range(seeds))
    return [run.run() for run in runs]


def first_half(changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.at <= changes[-1].at / 2]


def line(name: str, seeding: float, found: Sequence[Outcome]) -> str:
    """A row of the table, in Markdown."""
    rollbacks = [outcome.rollbacks for outcome in found]
    spread = stdev(rollbacks) if len(rollbacks) > 1 else 0.0
    without = sum(count == 0 for count in rollbacks) / len(rollbacks)
    return (
        f"| {name} | {seeding:g} s | {mean(rollbacks):.2f} ± {spread:.2f} | {max(rollbacks)} | {without:.0%} | "
        f"{mean(outcome.copies for outcome in found):.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seeding", type=float, nargs="+", default=SEEDING, metavar="S")
    arguments = parser.parse_args()
    for path in arguments.traces:
        changes = read_trace(path)
        hours = changes[-1].at / HOUR
        removed = sum(change.kind == "remove" for change in changes)
        print(f"{Path(path).name}: {hours:.1f} h, {removed} removals, {arguments.seeds} seeds")
        print(f'"auto": at most {MOST_ROLLBACKS:g} rollbacks expected in the time that is left\n')
        print("| copies | a new one takes | rollbacks | most | runs without any | copies in the mean |")
        print("| --- | --- | --- | --- | --- | --- |")
        for seeding in arguments.seeding:
            for name, copies, before in (
                ("2", 2, NOTHING_BEFORE),
                ("3", 3, NOTHING_BEFORE),
                ("4", 4, NOTHING_BEFORE),
                ("auto", AUTO, NOTHING_BEFORE),
                ("auto, given half", AUTO, bulks_before(first_half(changes))),
            ):
                found = outcomes(changes, copies, seeding, arguments.seeds, before)
                print(line(name, seeding, found), flush=True)
        print()


if __name__ == "__main__":
    main()

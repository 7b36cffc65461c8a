"""How often all copies of a stage go at once: ``python -m benchmarks.copies FILE...`` prints it for 2, 3, 4 and "auto".

"auto, given half" is given the trace's first half before it begins, as a run is that goes on from the day before.

One pipeline whose stages are held by their owner and the nodes before it, over each trace, zones unknown; as many draws
of which node holds what as there are seeds. Nothing is timed: the same seeds give the same figures anywhere.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from benchmarks.strategies import WORKLOADS
from culm.coordinator.copy_costs import FEWEST, Costs
from culm.coordinator.moving import SLOWDOWN
from culm.coordinator.state import NOTHING_BEFORE, BulksBefore
from culm.simulator.markets.chain_of_copies import AUTO, HOUR, Chain, Outcome
from culm.simulator.markets.compare import CHECKPOINT_SECONDS
from culm.simulator.markets.job_profile import Cluster, of_published
from culm.simulator.markets.trace import Change, bulks_before, read_trace
from culm.simulator.markets.workload import GRADIENT_BYTES

SEEDING = (2.0, 60.0)  # seconds until a new copy is whole


def costs_of_bert() -> Costs:
    """What "auto" weighs: one pipeline of BERT's published step, a layer a stage, and a checkpoint every 600 s."""
    profile, cluster = of_published(WORKLOADS["bert"]), Cluster()
    step = profile.least_step_seconds()
    gradients = GRADIENT_BYTES * max(profile.parameters) / cluster.bytes_per_second
    state = profile.state_bytes / len(profile.layers)
    return Costs(
        step=step,
        of_step=lambda copies: max(0, copies - FEWEST) * gradients,
        to_seed=SLOWDOWN * state / cluster.seed_bytes_per_second,
        rollback=CHECKPOINT_SECONDS / 2 + state / cluster.seed_bytes_per_second,
    )


def outcomes(
    changes: Sequence[Change], copies: int, seeding: float, seeds: int, before: BulksBefore = NOTHING_BEFORE
) -> list[Outcome]:
    """A run for each seed."""
    costs = costs_of_bert()
    runs = (
        Chain(changes=changes, copies=copies, seed=seed, seeding=seeding, before=before, costs=costs)
        for seed in range(seeds)
    )
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
        costs = costs_of_bert()
        longer = f"{costs.of_step(FEWEST + 1):.3f} s longer for each copy beyond {FEWEST}"
        print(f'"auto": a step of {costs.step:.2f} s is {longer}, a rollback takes {costs.rollback:.0f} s\n')
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

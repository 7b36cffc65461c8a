"""What the tables of docs/value.md compare: every strategy on the same machines, by name."""

from collections.abc import Callable, Sequence
from typing import Literal

from culm.simulator.markets.account import Row, Use
from culm.simulator.markets.bamboo import Bamboo
from culm.simulator.markets.compare import PIPELINES, culm
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.other_systems import CHECKPOINTS, DROPPING, OOBLECK_LIKE, VARUNA, Peer
from culm.simulator.markets.rerouting import Rerouting
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import PUBLISHED, Published, on_machines

MACHINES = 48  # that everybody asks for
WORKLOADS = {name: on_machines(work, MACHINES) for name, work in PUBLISHED.items()}

Strategy = Callable[[Sequence[Change], Published, float], Row]

CULM, CULM_AUTO, CULM_TWO = "culm, 3 copies", "culm, copies auto", "culm, 2 copies"
CULM_FOUR = "culm, 4 copies"
BAMBOO, RESTART = "bamboo, as published", "checkpoint and restart"


def grid(copies: int | Literal["auto"]) -> Strategy:
    """Culm with so many copies of every stage: ``[resilience] copies``."""
    return lambda changes, work, seconds: culm(changes, work, Cluster(), "lazy", PIPELINES[work.name], copies).run(
        seconds
    )


# With three copies one run of 5,000 up to 0.50 an hour loses all of a stage's. With two, or as many as "auto" chooses,
# more do.
STRATEGIES: dict[str, Strategy] = {
    RESTART: lambda changes, work, seconds: Peer(changes, work, CHECKPOINTS).run(seconds),
    "sample dropping": lambda changes, work, seconds: Peer(changes, work, DROPPING).run(seconds),
    "varuna-like": lambda changes, work, seconds: Peer(changes, work, VARUNA).run(seconds),
    "oobleck-like": lambda changes, work, seconds: Peer(changes, work, OOBLECK_LIKE).run(seconds),
    "recycle-like": lambda changes, work, seconds: Rerouting(changes, work).run(seconds),
    BAMBOO: lambda changes, work, seconds: Bamboo(changes, work).run(seconds),
    "bamboo, with lost work": lambda changes, work, seconds: Bamboo(changes, work, True).run(seconds),
    CULM: grid(3),
}
# Over traces, and in random markets on request.
OTHER_COPIES: dict[str, Strategy] = {CULM_AUTO: grid("auto"), CULM_TWO: grid(2), CULM_FOUR: grid(4)}
ALL = {**STRATEGIES, **OTHER_COPIES}


def figures(row: Row) -> dict[str, float]:
    """What the tables show of a run. ``lost``: the share of the time since the first step that brought no step on."""
    trained = row.samples / row.throughput if row.throughput else 0.0
    return {
        "throughput": row.throughput,
        "cost_per_hour": row.cost_per_hour,
        "value": row.value,
        "fatal": float(row.fatal),
        "preemptions": float(row.preemptions),
        "nodes": row.nodes,
        "lost": 1.0 - row.spent[Use.USEFUL.value] / trained if trained else 0.0,
    }

"""Strategies side by side on the same machines: a row each."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal

from culm.coordinator.copy_costs import FEWEST
from culm.simulator.markets.account import Row, Use
from culm.simulator.markets.bamboo import Bamboo
from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.job_profile import Cluster, of_published
from culm.simulator.markets.other_systems import RULES, Peer, on_demand
from culm.simulator.markets.rerouting import Rerouting
from culm.simulator.markets.run_setup import Choice
from culm.simulator.markets.trace import Change, at_most
from culm.simulator.markets.workload import Published

# Of a step in Culm's grid: what is best on 12 to 48 machines while none is lost (``benchmarks.pipelines``).
PIPELINES = {"bert": 12, "gpt2": 8, "resnet": 48, "gnmt": 32, "vgg": 32, "alexnet": 48}
REDUNDANCIES = ("off", "lazy", "eager", "auto")
# Between two of Culm's checkpoints: pipeline/money/prices.toml has the same for the restart that it compares with.
CHECKPOINT_SECONDS = 600.0


def rows(changes: Sequence[Change], work: Published, seconds: float, cluster: Cluster) -> Iterator[Row]:
    """Every strategy on the same trace for so long, or until the run's steps are done; one after another."""
    yield on_demand(work, seconds)
    wanted = at_most(changes, work.machines)
    for rule in RULES:
        yield Peer(wanted, work, rule, cluster.per_hour).run(seconds)
    yield Rerouting(wanted, work, cluster.per_hour).run(seconds)
    for charges in (False, True):
        yield Bamboo(wanted, work, charges, cluster.per_hour).run(seconds)
    for redundancy in REDUNDANCIES:
        yield culm(changes, work, cluster, redundancy).run(seconds)
    yield culm(changes, work, cluster, "lazy", PIPELINES[work.name]).run(seconds, "culm, grid")


def culm(
    changes: Sequence[Change],
    work: Published,
    cluster: Cluster,
    redundancy: str,
    pipelines: int = 1,
    copies: int | Literal["auto"] = "auto",
) -> CulmRun:
    """One pipeline has as many stages as there are nodes and layers, and two spares.

    Several run on all machines that the others ask for. Their shape is the coordinator's. ``copies``: of every stage,
    as ``[resilience] copies``; one pipeline has two.
    """
    profile = of_published(work, pipelines)
    if pipelines == 1:
        length = profile.least_step_seconds() + cluster.commit_seconds
        choice = Choice(redundancy=redundancy, checkpoint_steps=round(CHECKPOINT_SECONDS / length))
    else:
        steps = round(CHECKPOINT_SECONDS / min(work.step_seconds.values()))
        choice = Choice(
            redundancy=redundancy,
            machines=work.machines,
            checkpoint_steps=steps,
            copies=copies if isinstance(copies, int) else FEWEST,
            chooses_copies=copies == "auto",
        )
    return CulmRun(changes, profile, cluster, choice)


def as_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    return [{key: _short(value) for key, value in asdict(row).items()} for row in found]


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: round(seconds, 3) for key, seconds in value.items()}
    return round(value, 4) if isinstance(value, float) else value


COLUMNS = ("strategy", "samples/s", "$/h", "value", "nodes", "lost", "fatal", "exposed")


def cells(row: Row) -> list[str]:
    """As ``COLUMNS``: what it came to."""
    return [
        row.strategy,
        f"{row.throughput:.1f}",
        f"{row.cost_per_hour:.2f}",
        f"{row.value:.2f}",
        f"{row.nodes:.1f}",
        f"{row.preemptions}",
        f"{row.fatal}",
        f"{row.exposed_seconds:.0f} s",
    ]


SPENT_COLUMNS = ("strategy", *(use.value for use in Use))


def spent_cells(row: Row) -> list[str]:
    """As ``SPENT_COLUMNS``: shares of the wall time in percent; nothing for nothing."""
    shares = (100 * row.spent[use.value] / row.seconds if row.seconds else 0.0 for use in Use)
    return [row.strategy, *(f"{share:.1f} %" if share >= 0.05 else "" for share in shares)]

"""A store knows a run by its name alone: what stands in it is compared with the coordinator's own job (rule 23)."""

import asyncio
from pathlib import Path

import pytest

from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.reports import Available, Fetched, Joined, Left, Ready, Report
from culm.coordinator.state import Phase
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
ALONE = ["job.steps=1", "pipeline.stages=1", "resilience.redundancy=off"]
JOINS: list[Report] = [
    Joined(node="n0", incarnation=1, address="127.0.0.1:1"),
    Available(node="n0", incarnation=1, layer_costs=(1.0,), fingerprint="code"),
]
LOSES: list[Report] = [*JOINS, Left("n0", 1)]
ENDS: list[Report] = [
    *JOINS,
    Ready(node="n0", incarnation=1, era=0, step=0, stage=0, first_layer=0, squared_norms=(1.0,), tallies=(1.0, 0.1)),
    Fetched("by a test"),
]


async def led(store: MemoryStore, reports: list[Report], *changes: str) -> Leader:
    """A coordinator of this job, told these reports, that has stopped."""
    job = load_job(EXAMPLE, [*ALONE, *changes])
    leader = Leader(CoordinatorSettings(job=job, new_run=True), store)
    await leader.lead()
    for report in reports:
        leader.take(report)
    await leader.close()
    return leader


async def after(reports: list[Report], *changes: str) -> tuple[Leader, Leader]:
    store = MemoryStore()
    return await led(store, reports), await led(store, [], *changes)


@pytest.mark.parametrize("reports", [LOSES, ENDS], ids=["rolled back", "released"])
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("job.name=other", "job.name is 'other', and was 'digits-mlp' in the run's job"),
        ("job.steps=2", "job.steps is 2, and was 1 in the run's job"),
        ("job.seed=7", "job.seed is 7 in this job, and 0 in the run's"),
    ],
)
def test_a_run_without_a_plan_is_not_another_job_s(reports: list[Report], changed: str, named: str) -> None:
    """One that was done was shown as the new job's, with its weights; one that waits refused every node."""
    with pytest.raises(JobError, match=named):
        asyncio.run(after(reports, changed))


@pytest.mark.parametrize(
    ("reports", "phase"), [(LOSES, Phase.WAITING), (ENDS, Phase.DONE)], ids=["rolled back", "released"]
)
def test_its_own_job_goes_on(reports: list[Report], phase: Phase) -> None:
    first, second = asyncio.run(after(reports))
    assert (first.state.plan, first.state.phase) == (None, phase)
    assert (second.state.plan, second.state.phase) == (None, phase)


def test_a_job_with_which_no_node_has_begun_may_be_edited() -> None:
    _, second = asyncio.run(after(JOINS[:1], "job.seed=7"))
    assert second.state.phase is Phase.WAITING

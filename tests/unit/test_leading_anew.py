"""A leader that meets a higher term leads anew in the same process, and persists what it decides from then on."""

import asyncio
from pathlib import Path

from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.order_stream import APART
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.reports import Available, Draining, Joined
from culm.pipeline.job import load_job
from culm.pipeline.plan import Plan, StagePlan

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
JOB = load_job(EXAMPLE, ["pipeline.stages=1", "resilience.redundancy=off"])
OF_TERM_3 = Plan(term=3, generation=1, era=0, step=0, stages=(StagePlan(0, 1, ("n1",)),), leader=7)


def arrives(leader: Leader, node: str, plan: Plan | None = None) -> None:
    leader.take(Joined(node=node, incarnation=1, address="127.0.0.1:1"))
    leader.take(Available(node=node, incarnation=1, layer_costs=(1.0,), plan=plan))


async def persisted_in_the_term_after() -> bool:
    store = MemoryStore()
    leader = Leader(CoordinatorSettings(job=JOB, nodes=1), store)
    await leader.lead()
    arrives(leader, "n0")  # begins an era, which is to be written
    arrives(leader, "n1", OF_TERM_3)  # in the same turn of the event loop
    assert leader.outranked is not None
    await asyncio.sleep(APART)  # the event loop does first what was put off as long, and earlier
    await leader.lead()
    assert (leader.term, store.document) == (4, None), "the term before has written nothing"
    arrives(leader, "n0")
    leader.take(Draining("n0", "an operator asked"))  # intent is persisted (rule 17)
    await asyncio.sleep(APART)
    return store.document is not None


def test_a_write_that_the_term_before_owed_keeps_none_of_this_term_back() -> None:
    assert asyncio.run(persisted_in_the_term_after())

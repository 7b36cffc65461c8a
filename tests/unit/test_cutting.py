"""What the stages are cut by: parameters, or the times that nodes have measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from culm.coordinator import cutting
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.placement import place
from culm.coordinator.repartition import propose
from culm.coordinator.reports import Available, Joined
from culm.coordinator.state import Settings, State
from culm.coordinator.step_cost import step_cost
from culm.pipeline.identity import changes, keys_of
from culm.pipeline.job import load_job
from culm.pipeline.plan import Stages
from culm.pipeline.user_code.model import ModelSource
from tests.unit.test_repartition import CALM

PARAMETERS = (100.0, 1.0, 1.0, 1.0, 1.0, 1.0)  # an embedding, and layers that compute
SECONDS = (0.1, 1.0, 1.0, 1.0, 1.0, 1.0)
JOB = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"


def started(*told: tuple[float, ...], why: str = "", measured: bool = True) -> State:
    """A run of two stages; each node has told these times."""
    state = begin(Settings(stages=2, microbatches=2, steps=5, nodes=len(told), measured=measured))
    for i, seconds in enumerate(told):
        state = joined(state, f"n{i}", seconds, why)
    return state


def joined(state: State, name: str, seconds: tuple[float, ...], why: str = "") -> State:
    available = Available(
        node=name, incarnation=1, layer_costs=PARAMETERS, layer_seconds=seconds, unmeasured="" if seconds else why
    )
    for report in (Joined(node=name, incarnation=1, address=f"{name}:1"), available):
        state, _ = advance(state, report, 0.0)
        validate(state)
    return state


def ranges(stages: Stages) -> list[tuple[int, int]]:
    return [(stage.first_layer, stage.end_layer) for stage in stages]


def cut(state: State) -> list[tuple[int, int]]:
    assert state.plan is not None
    return ranges(state.plan.stages)


def test_the_embedding_is_no_stage_of_its_own_where_times_are_measured() -> None:
    assert cut(started(SECONDS, SECONDS, measured=False)) == [(0, 1), (1, 6)]
    assert cut(started(SECONDS, SECONDS)) == [(0, 3), (3, 6)]


def test_the_median_over_the_nodes_counts_layer_by_layer() -> None:
    slow = tuple(1e6 if layer == 5 else seconds for layer, seconds in enumerate(SECONDS))
    fast = tuple(1e-6 if layer == 1 else seconds for layer, seconds in enumerate(SECONDS))
    assert started(slow, SECONDS, fast).layer_seconds == SECONDS
    assert started((), SECONDS, ()).layer_seconds == SECONDS, "one node that has measured is enough"


def test_a_plan_says_by_what_it_is_cut() -> None:
    measured = started(SECONDS, SECONDS).plan
    assert measured is not None
    assert measured.reason.endswith("cut by measured times: of 5100.00 ms a microbatch the longest stage takes 3000.00")
    failed = started((), (), why="layer 3 (Linear) raised ValueError: no luck")
    assert failed.plan is not None
    assert failed.plan.reason.endswith(
        "cut by parameters, since no node knows how long its layers take "
        "(n0 could not measure: layer 3 (Linear) raised ValueError: no luck)"
    )
    assert cut(failed) == [(0, 1), (1, 6)]
    parameters = started(SECONDS, SECONDS, measured=False).plan
    assert parameters is not None
    assert "cut by" not in parameters.reason


def test_what_is_settled_stays() -> None:
    state = started(SECONDS, SECONDS)
    assert not cutting.wanted(state), "a node that joins later need not measure"
    assert cutting.settled(joined(state, "n2", tuple(reversed(SECONDS)))).layer_seconds == SECONDS
    successor = from_document(json.loads(json.dumps(to_document(state))), state.settings, 2, 100.0)
    assert cutting.costs_of(successor) == SECONDS


def test_a_state_of_an_older_version_has_no_times() -> None:
    state = started(SECONDS, SECONDS)
    document = to_document(state)
    del document["layer_seconds"]
    assert cutting.wanted(from_document(document, state.settings, 2, 100.0))


def test_times_of_another_model_are_left_out() -> None:
    state = replace(started((), ()), layer_seconds=())
    assert cutting.settled(joined(state, "n2", SECONDS[:3])).layer_seconds == ()


def test_who_adds_up_a_layer_goes_by_parameters() -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    stages = place(nodes, SECONDS, 2, copies=2, pipelines=2, parameters=PARAMETERS)
    assert ranges(stages) == [(0, 3), (3, 6)]
    first, *others = stages[0].buckets.reducers
    assert first not in others, "the embedding is as much as both others are not"


def test_a_new_cut_goes_by_times_and_what_moving_costs_by_parameters() -> None:
    situation = replace(CALM, layer_costs=SECONDS, layer_parameters=(1e6,) * 6, most_stages=2, nodes=("n0", "n1"))
    before = place(("n0", "n1"), PARAMETERS, 2, copies=1)
    proposal = propose(before, situation)
    assert proposal is not None
    assert ranges(proposal[0]) == [(0, 3), (3, 6)]
    assert step_cost(proposal[0], situation) < step_cost(before, situation)
    # n0 is seeded with layers 1 and 2, and with 3 to 5 to stand by for; n1 with layer 0 alone.
    assert "moving 72 MB" in proposal[1]


@pytest.mark.parametrize("value", ["parameters", "measured"])
def test_no_bit_depends_on_the_cut(value: str) -> None:
    usual, job = load_job(JOB), load_job(JOB, [f"pipeline.cut={value}"])
    assert not any(key.endswith(".cut") for key in keys_of(job))
    assert changes(usual, job) == []
    assert ModelSource(usual).identity() == ModelSource(job).identity()

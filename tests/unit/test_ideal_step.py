"""The ideal of a step, by costs."""

import pytest

from culm.pipeline.ideal_step import Costs, ideal_step
from culm.pipeline.schedule import Schedule


def costs(nodes: int, forward: float = 1.0, backward: float = 2.0, slow: str = "") -> Costs:
    times = {"F": forward, "B": backward, "W": backward / 2, "E": forward}
    names = [f"n{i}" for i in range(nodes)]
    return {(n, s, op): t * (2 if n == slow else 1) for n in names for s in range(nodes) for op, t in times.items()}  # type: ignore[misc]


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 4), (4, 8), (8, 16)])
def test_one_pipeline_is_1f1b(stages: int, microbatches: int) -> None:
    owners = [[f"n{s}"] for s in range(stages)]
    ideal = ideal_step(owners, Schedule(microbatches), costs(stages))
    assert ideal.seconds == (microbatches + stages - 1) * 3.0
    assert ideal.busiest_seconds == microbatches * 3.0
    assert ideal.bubble("n0") == (stages - 1) * 3.0
    assert all(len(spans) == 2 * microbatches for spans in ideal.spans.values())


def test_two_pipelines_of_one_row_fill_the_pipe_once() -> None:
    owners = [["n0", "n0"], ["n1", "n1"]]
    ideal = ideal_step(owners, Schedule(4), costs(2))
    assert ideal.seconds == (8 + 1) * 3.0


def test_a_slow_node_makes_the_others_wait() -> None:
    owners = [["n0"], ["n1"]]
    ideal = ideal_step(owners, Schedule(8), costs(2, slow="n1"))
    assert ideal.seconds == 1.0 + 8 * 6.0 + 2.0
    assert ideal.bubble("n1") == 3.0


def test_a_split_backward_fills_the_bubble() -> None:
    owners = [[f"n{s}"] for s in range(4)]
    split = dict(costs(4))
    split.update({(n, s, op): 1.0 for n, s, op in split if op in "BW" and s > 0})
    whole = ideal_step(owners, Schedule(8), costs(4)).seconds
    ideal = ideal_step(owners, Schedule(8, splits=True), split)
    assert ideal.seconds < whole
    assert len(ideal.spans["n1"]) == 3 * 8
    assert len(ideal.spans["n0"]) == 2 * 8


def test_evaluations_go_forward_alone() -> None:
    owners = [["n0"], ["n1"]]
    ideal = ideal_step(owners, Schedule(4), costs(2), evaluated=3, trains=False)
    assert ideal.seconds == 4.0


def test_a_cost_that_is_missing_is_told() -> None:
    with pytest.raises(LookupError):
        ideal_step([["n0"]], Schedule(1), {})

"""What a job file says otherwise than before, where the two values are equal in Python and mean other bits."""

from pathlib import Path
from typing import Any

import pytest

from culm.pipeline.identity import changes
from culm.pipeline.job import job_to_toml, load_job, parse_job, with_values

EXAMPLE = load_job(Path(__file__).parents[2] / "examples" / "digits_mlp.toml")


@pytest.mark.parametrize(
    ("then", "now"), [(True, 1), (1, 1.0), (0.0, -0.0), ([1, 2], [1.0, 2]), ([1], [1, 1]), ({"a": 1}, {"a": True})]
)
@pytest.mark.parametrize("nested", [False, True])
def test_values_that_are_equal_are_told_apart_at_every_depth(then: Any, now: Any, nested: bool) -> None:
    """A nested table was compared by == alone: bias = true was taken for 1, and the run went on with other layers."""
    before, after = (
        with_values(EXAMPLE, {"model.args": {"config": {"deep": [{"x": value}]} if nested else value}})
        for value in (then, now)
    )
    assert {change.part for change in changes(before, after)} == {"model"}
    assert changes(before, parse_job(job_to_toml(before))) == []


def test_the_order_of_a_table_is_no_change() -> None:
    one = with_values(EXAMPLE, {"model.args": {"config": {"a": 1, "b": float("nan")}}})
    other = with_values(EXAMPLE, {"model.args": {"config": {"b": float("nan"), "a": 1}}})
    assert changes(one, other) == []

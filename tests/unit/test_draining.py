"""What the coordinator makes of a node that says again that it is to go."""

import pytest

from culm.coordinator.commands import Record
from culm.coordinator.reports import Draining
from culm.pipeline.money import kinds
from tests.unit.test_rule_15 import after, led

WHY = "its machine is to go"


@pytest.mark.parametrize(
    ("seconds_left", "leaves_at", "said"),
    [
        (110.0, 130.0, ""),  # the same deadline, told on a new stream 10 s later
        (107.0, 127.0, ""),  # by a node whose report took its time
        (30.0, 50.0, "n1 goes sooner than it said before: 30 s are left"),
        (300.0, 320.0, "n1 goes later than it said before: 300 s are left"),
        (None, 130.0, ""),  # an operator drains it too, and knows no deadline
    ],
)
def test_the_last_word_about_the_deadline_counts(seconds_left: float | None, leaves_at: float, said: str) -> None:
    state, _ = led(1)
    state, _ = after(state, Draining("n1", WHY, 120.0), now=10.0)
    assert state.nodes["n1"].leaves_at == 130.0
    state, commands = after(state, Draining("n1", WHY, seconds_left), now=20.0)
    assert state.nodes["n1"].leaves_at == leaves_at
    assert state.nodes["n1"].draining == WHY
    told = [c for c in commands if isinstance(c, Record) and isinstance(c.event, kinds.Draining)]
    assert [c.text for c in told] == ([said] if said else [])


def test_who_was_told_to_stop_stays_told() -> None:
    state, _ = led(1)
    state, _ = after(state, Draining("n1", "it was told to stop", 25.0, told=True), now=10.0)
    state, _ = after(state, Draining("n1", WHY, 120.0), now=11.0)
    assert state.nodes["n1"].told
    assert state.nodes["n1"].leaves_at == 131.0

"""What others do with the same machines, by their published rules."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from culm.simulator.markets.account import Row
from culm.simulator.markets.other_systems import RULES, Peer
from culm.simulator.markets.rerouting import Rerouting
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import PUBLISHED

SHORT = replace(PUBLISHED["bert"], steps=1000)
HORIZON = 40_000.0
Played = Callable[[Sequence[Change]], Row]
PLAYED: dict[str, Played] = {
    **{rule.name: lambda changes, rule=rule: Peer(changes, SHORT, rule).run(HORIZON) for rule in RULES},  # type: ignore[misc]
    "recycle-like": lambda changes: Rerouting(changes, SHORT).run(HORIZON),
}


@pytest.mark.parametrize("play", PLAYED.values(), ids=PLAYED)
def test_a_job_that_is_done_is_not_paid_for_any_more(play: Played) -> None:
    """The last node of another pipeline was starting as the job ended: it had the job pause, for as long as anybody
    looked.
    """
    names = [*(f"a{i}" for i in range(SHORT.stages)), *(f"b{i}" for i in range(SHORT.stages - 1))]
    first = [Change(at=0.0, kind="add", node=name) for name in names]
    done = play(first)
    assert done.seconds < HORIZON / 2, "it ends long before anybody stops looking"
    late = Change(at=done.seconds - 20.0, kind="add", node="last")
    row = play([*first, late])
    assert row.seconds == pytest.approx(done.seconds)
    assert row.steps == done.steps

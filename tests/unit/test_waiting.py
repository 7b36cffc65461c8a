"""What a run waits for is told in its detail, unless it has failed: then the detail says why."""

from dataclasses import replace

from culm.coordinator import waiting
from culm.coordinator.state import Phase, Settings, State


def test_a_failed_run_says_why_it_failed_though_its_nodes_have_gone() -> None:
    state = State(settings=Settings(stages=2, microbatches=2, steps=90))
    waits, commands = waiting.wait(state, waiting.LINK, "n0 and n1 do not reach each other")
    assert waits.detail == "n0 and n1 do not reach each other"
    assert len(commands) == 1
    failed = replace(waits, phase=Phase.FAILED, detail="n0: no module")
    assert waiting.wait(failed, waiting.SILENCE, "nobody is heard", silent=True) == (failed, ())
    assert waiting.over(failed, waiting.LINK).detail == "n0: no module"

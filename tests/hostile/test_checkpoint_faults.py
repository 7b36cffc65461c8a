"""Why no checkpoint can be written is said until that one is whole, or a newer one, in whatever order this comes."""

from dataclasses import replace
from itertools import permutations

import pytest

from culm.coordinator import reports
from culm.coordinator.decide import begin
from culm.coordinator.state import Settings
from tests.hostile.test_origin import TEN, TWENTY, after, arrival, rolled_back

FAULTS = [reports.CheckpointFault(node, step, "no") for node, step in (("n0", 10), ("n1", 20), ("", 20))]
WHOLE = [reports.Checkpointed(TEN), reports.Checkpointed(TWENTY)]


@pytest.mark.parametrize("order", list(permutations([*FAULTS, *WHOLE])))
def test_a_fault_stands_until_its_checkpoint_is_whole(order: tuple[reports.Report, ...]) -> None:
    """That of the last step went as an older one became whole: who waited for it was told nothing for ten minutes."""
    settings = Settings(stages=2, microbatches=1, steps=30, checkpoint_url="memory://c")
    state, _ = after(begin(settings), *arrival("n0", 1), *arrival("n1", 2))
    state = replace(state, committed=20, plan=replace(state.plan, step=20) if state.plan is not None else None)
    whole, failed = 0, 0
    for report in order:
        state, _ = after(state, report)
        if isinstance(report, reports.Checkpointed):
            whole = max(whole, report.checkpoint.step)
        elif isinstance(report, reports.CheckpointFault) and report.step > whole:
            failed = max(failed, report.step)
        assert state.storage.fault_step == (failed if failed > whole else 0)
        assert bool(state.storage.fault) is (failed > whole)


def test_a_fault_goes_with_its_era() -> None:
    """Also one that is told late: none of the new era's checkpoints would be newer for a long time."""
    late = reports.CheckpointFault("n0", 20, "no")
    state = rolled_back()
    state, _ = after(state, *arrival("n2", 3), *arrival("n3", 4), late)
    assert (state.storage.fault, state.storage.fault_step) == ("", 0)

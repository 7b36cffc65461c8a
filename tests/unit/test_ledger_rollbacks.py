"""A run that goes on after it was over, paused or rolled back: what it costs, and what is still to come."""

import pytest

from tests.unit.test_forecast import calm_run, of, plan
from tests.unit.test_ledger import Log


def goes_on(log: Log, at: float) -> None:
    """Two nodes train the seventh step again, as quickly as those before."""
    plan(log, at, 6)
    log.commits(at + 5, 6)


@pytest.mark.parametrize("kind", ["stopping", "failed"])
def test_a_run_that_was_over_and_goes_on_has_a_rest_again(kind: str) -> None:
    """Its nodes were stopped and started again, or its job was mended; the forecast stayed with why it was over."""
    log = calm_run()
    log.happens(46, kind, 6)
    assert of(log, 46).steps_left == 10
    assert not of(log, 46).HasField("seconds")
    log.happens(50, "recovered_coordinator", 6)
    goes_on(log, 60)
    found = of(log, 65)
    assert found.seconds.expected > 9 * 5.0
    assert found.why == "from 5 calm steps; 1 interruption"


def test_a_run_whose_nodes_went_waits_for_others_since_its_rollback() -> None:
    log = calm_run()
    log.happens(46, "stopping", 6)
    log.happens(47, "rollback", 6, step=6)
    assert of(log, 50).why.endswith("the run waits for nodes since a rollback")

"""Real processes of the launcher: what each of them ended with is told for each."""

import os
import time
from pathlib import Path

from culm.local.cluster import COORDINATOR_FAILURES, NODE_FAILURES, RAN_WELL_SECONDS, in_a_row
from culm.local.processes import Child

ROUNDS, TOGETHER = 6, 12
WORDS = ["stage", "--coordinator", "127.0.0.1:1", "--name", "alone"]  # waits for a coordinator that never comes


def test_nodes_that_die_together_while_another_starts(tmp_path: Path) -> None:
    """Neighbours are lost: the first is started again while the end of the others is being learnt."""
    for number in range(ROUNDS):
        log = tmp_path / f"{number}.log"
        killed = [Child.fork(WORDS, log, os.environ) for _ in range(TOGETHER)]
        for child in killed:
            child.kill()
        again = Child.fork(WORDS, log, os.environ)
        again.kill()
        for child in (*killed, again):
            assert child.wait(60)
        assert {child.returncode for child in (*killed, again)} == {-9}, log.read_text()


def count(*ran: float) -> int:
    """Ends in a row, of processes that ran for so many seconds one after the other."""
    before = 0
    for seconds in ran:
        before = in_a_row(before, seconds)
    return before


def test_a_process_that_ran_well_ends_a_row_of_failures() -> None:
    week = 7 * 86400.0
    assert count(*[week] * 10) == 1
    assert count(1.0, 2.0, 3.0) == 3
    assert count(1.0, 2.0, RAN_WELL_SECONDS, 1.0) == 2, "the one that ran well has ended by itself, too"
    assert count(*[1.0] * (NODE_FAILURES + 1)) > NODE_FAILURES
    assert count(*[1.0] * (COORDINATOR_FAILURES + 1)) > COORDINATOR_FAILURES


def test_how_long_a_process_ran_is_known_once_it_has_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    child = Child.start(["false"], tmp_path / "log", os.environ)
    assert child.wait(60)
    assert 0.0 < child.ran <= time.monotonic() - began

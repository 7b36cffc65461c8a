"""Real processes of the launcher: what each of them ended with is told for each."""

import os
from pathlib import Path

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

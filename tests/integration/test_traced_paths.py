"""``python -m benchmarks.paths`` follows a real run: its hook reads fields where no type checker sees them."""

import re
import subprocess
import sys

from tests.hostile.commands import ROOT, environment

NAMES = ("a tensor", "a lost node")  # whose lines tell how many files they led through
DEADLINE = 240.0  # seconds until a run that hangs fails; no test waits for it


def test_a_tensor_and_a_lost_node_are_followed_through_a_real_run() -> None:
    words = [sys.executable, "-m", "benchmarks.paths"]
    run = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 0, run.stderr
    for name in NAMES:
        assert re.search(rf"^{name}.*: [1-9]\d* files handed, [1-9]\d* entered$", run.stdout, re.MULTILINE), run.stdout
    where = {
        "the receiver of a tensor": r"stage_server/streams/incoming\.py: ",
        "the evidence": r"coordinator/\S+: (peer_lost|stream_broken) ",
    }
    for what, place in where.items():
        assert re.search(rf"^  (entered: )?{place}", run.stdout, re.MULTILINE), f"{what} is missing: {run.stdout}"

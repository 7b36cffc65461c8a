"""``culm top`` as a process: in a pipe, in a terminal, and how it ends."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from culm.local.cluster import LocalCluster
from culm.pipeline.job import load_job

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def test_the_command_prints_one_picture_into_a_pipe_and_ends_by_q_in_a_terminal(tmp_path: Path) -> None:
    job = load_job(ROOT / "examples" / "digits_mlp.toml", ["pipeline.stages=1", "job.steps=100000"])
    with LocalCluster(job, ROOT / "examples", 1, folder=tmp_path / "run") as cluster:
        command = [sys.executable, "-m", "culm", "top", "--coordinator", cluster.address]
        piped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert (piped.returncode, piped.stderr) == (0, "")
        assert piped.stdout.startswith("digits-mlp  ")
        assert "\x1b" not in piped.stdout
        for end in (b"q", b"\x03", signal.SIGTERM):
            code, said = in_a_terminal(command, end)
            assert code == 0, said
            assert "\x1b[?1049h" in said, "it shows its pictures on the terminal's other screen"
            assert said.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h")), "and leaves the terminal as it was"


def in_a_terminal(command: list[str], end: bytes | signal.Signals) -> tuple[int, str]:
    """Runs the command in a terminal of its own until it shows a picture, and ends it by a key or a signal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="80", LINES="24")
        os.execv(command[0], command)
    said, deadline, ended = b"", time.monotonic() + PATIENCE, False
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 0.1)
        try:
            said += os.read(terminal, 1 << 16) if ready else b""
        except OSError:  # the other end is closed
            break
        if b"digits-mlp" in said and not ended:
            ended = True
            os.kill(pid, end) if isinstance(end, signal.Signals) else os.write(terminal, end)
    os.close(terminal)
    _, code = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(code), said.decode(errors="replace")

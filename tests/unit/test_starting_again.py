"""A process that starts again under its process id leaves no ended children behind."""

import subprocess
import sys
from pathlib import Path

# The second process waits, without reaping it, until the child that the first one has left ends.
SCRIPT = """
import os, sys
from multiprocessing import get_context

from culm.stage_server.starting_again import reap_ended

def work():
    pass

if __name__ == "__main__" and not sys.argv[1:]:
    process = get_context("spawn").Process(target=work)
    process.start()
    process.join()
    os.execv(sys.executable, [sys.executable, __file__, "again"])
elif __name__ == "__main__":
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    reap_ended()
    try:
        os.waitpid(-1, os.WNOHANG)
        print("a zombie is left")
    except ChildProcessError:
        print("none is left")
"""


def test_multiprocessings_own_child_is_reaped_after_the_start(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "none is left\n"


def test_a_process_without_children_has_nothing_to_reap() -> None:
    code = "from culm.stage_server.starting_again import reap_ended; reap_ended()"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)

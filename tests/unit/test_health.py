"""A health check ends by itself, however busy its machine is: whoever asked leaves it running, and asks again."""

import signal
import subprocess
import sys

from culm.__main__ import HEALTH_SECONDS


def test_a_health_check_is_ended_in_time_and_no_other_command() -> None:
    for command, most in (("health", HEALTH_SECONDS), ("status", 0)):
        script = (
            f"import sys, signal; sys.argv = ['culm', '{command}', '--help']\n"
            "from culm.__main__ import main\n"
            "main()\n"
            "print(signal.alarm(0))"
        )
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        left = int(ran.stdout.split()[-1])
        assert (0 < left <= most) if most else not left, command


def test_what_is_to_end_ends_whatever_it_is_at() -> None:
    script = "import signal; from culm.terminal import interrupts; interrupts.end_after(1); signal.pause()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ran.returncode == -signal.SIGALRM

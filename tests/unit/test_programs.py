"""A benchmark that runs another program tells why that one failed."""

import subprocess
import sys

import pytest

from benchmarks.programs import told_by


def test_what_a_program_tells_is_its_last_line() -> None:
    assert told_by([sys.executable, "-c", "print('warming up'); print(1.5)"]) == "1.5"


def test_a_program_that_fails_says_why() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        told_by([sys.executable, "-c", "import sys; sys.exit('no such card')"])
    assert any("no such card" in note for note in failed.value.__notes__)

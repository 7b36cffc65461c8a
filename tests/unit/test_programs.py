"""A benchmark that runs another program tells why that one failed."""

import subprocess
import sys

import pytest

from benchmarks.programs import said_by


def test_what_a_program_says_is_given_back() -> None:
    assert said_by([sys.executable, "-c", "print(1.5)"]) == "1.5\n"


def test_a_program_that_fails_says_why() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        said_by([sys.executable, "-c", "import sys; sys.exit('no such card')"])
    assert any("no such card" in note for note in failed.value.__notes__)

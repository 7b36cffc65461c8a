"""What only asks and decides works on machines without torch, and answers at once."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
for name in ("torch", "numpy", "safetensors"):
    sys.modules[name] = None  # importing it raises ImportError
from culm.__main__ import main
import coordinator.service, culm.progress
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("words", [("--help",), ("coordinator", "--help"), ("status", "--help"), ("events", "--help")])
def test_commands_that_need_no_torch(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "culm" in done.stdout

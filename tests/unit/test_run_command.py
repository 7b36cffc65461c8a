"""What ``culm run`` says at its end."""

from pathlib import Path

import pytest
import torch

from culm.commands.run import _write
from culm.terminal.outcome import Outcome

LAYERS = [(0, {"weight": torch.ones(2)})]


def test_weights_that_cannot_be_written_are_told_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk was full: nobody said that a whole checkpoint has the same weights."""
    assert not _write(str(tmp_path / "gone" / "w.safetensors"), Outcome(layers=LAYERS, checkpoint="ck/step-00000060"))
    said = capsys.readouterr().err
    assert "the weights cannot be written" in said
    assert said.endswith("; culm checkpoint export ck/step-00000060 --out FILE writes them elsewhere\n")
    assert _write(str(tmp_path / "w.safetensors"), Outcome(layers=LAYERS))

"""What tells nodes with other code apart."""

from pathlib import Path

import pytest

from culm.pipeline.user_code.model import ModelSource
from tests.unit.exactness import SGD, make_job


def test_nodes_with_other_code_have_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the job names one module and the layers come from another."""
    package = tmp_path / "their_model"
    package.mkdir()
    (package / "__init__.py").write_text("from their_model.blocks import layers, data\n")
    blocks = package / "blocks.py"
    blocks.write_text(
        "from torch import nn\nfrom tests.unit.exactness import dataset as data\n"
        "def layers():\n    return [nn.Linear(8, 4)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = {"layers": "their_model:layers", "args": {}}
    job = make_job(1, 1, SGD, False, count=2)
    job = job.model_copy(update={"model": job.model.model_copy(update=changes)})
    before = ModelSource(job).fingerprint()
    assert ModelSource(job).fingerprint() == before
    blocks.write_text(blocks.read_text() + "# another version\n")
    assert ModelSource(job).fingerprint() != before

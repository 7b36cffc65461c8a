"""The notebook runs to its end in a kernel of Jupyter: ``make notebook``."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_it_trains_loses_a_node_and_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]), prepend=":")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    said = [
        "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    assert [line.split()[1] for line in said[2].splitlines()] == ["0", "5", "10", "15", "20", "25"]
    assert "identical, after the kill n" in "".join(said)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".py", ".toml")) == [
        "quickstart.toml",
        "quickstart_model.py",
    ]

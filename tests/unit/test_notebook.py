"""The notebook in examples/, without Jupyter: its job can be trained, and what it takes from Culm is there.

``make notebook`` runs all of it.
"""

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest

import culm
from culm.pipeline.user_code.check import check_job

ROOT = Path(__file__).parents[2]
CELLS = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
WRITES = "%%writefile "


def test_its_cells_have_no_outputs_and_are_short() -> None:
    assert [cell for cell in CELLS if cell.get("outputs") or cell.get("execution_count")] == []
    assert max(len(source.splitlines()) for source in CODE) <= 20


def test_what_it_takes_from_culm_is_there() -> None:
    """And what it takes from a run's outcome and from a verification."""
    cells = [ast.parse(source) for source in CODE if not source.startswith(WRITES)]
    known: dict[str, Any] = {"culm": culm}
    taken: dict[str, set[str]] = {}
    for node in [node for cell in cells for node in ast.walk(cell)]:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            (target,) = node.targets
            module, _, function = ast.unparse(node.value.func).partition(".")
            if module == "culm" and isinstance(target, ast.Name):
                known[target.id] = get_type_hints(getattr(culm, function))["return"]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            taken.setdefault(node.value.id, set()).add(node.attr)
    assert {"culm", "outcome", "found"} <= known.keys() & taken.keys()
    for name, value in known.items():
        there = {*dir(value), *getattr(value, "__dataclass_fields__", ()), *getattr(value, "__all__", ())}
        assert taken.get(name, set()) <= there, name


def test_its_job_can_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", kernel)
    for source in CODE:
        if source.startswith(WRITES):
            name, _, text = source.removeprefix(WRITES).partition("\n")
            Path(name).write_text(text)
            continue
        exec(compile(source, "cell", "exec"), vars(kernel))
        if "job" in vars(kernel):
            break
    job: culm.Job = vars(kernel)["job"]
    del sys.modules[job.model.layers.partition(":")[0]]
    check_job(job)

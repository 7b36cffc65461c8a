"""A job made in Python: objects stand for their import paths, and what nodes would not find there is refused."""

import functools
import importlib
import os
import re
import runpy
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import culm
from culm.examples import digits_mlp
from culm.metrics import accuracy
from culm.optim import decay_matrices
from culm.pipeline.job import job_to_toml, parse_job
from culm.pipeline.job_page import page
from culm.pipeline.user_code.imports import load_callable, refuse_while_importing
from culm.pipeline.user_code.naming import path_of


def sections(**changes: dict[str, Any]) -> dict[str, Any]:
    """Of a job with objects of this process."""
    made: dict[str, dict[str, Any]] = {
        "job": {"steps": 12},
        "model": {"layers": digits_mlp.layers, "args": {"width": 64, "hidden": 3}},
        "data": {"dataset": digits_mlp.dataset, "microbatch": 16},
        "train": {"loss": F.cross_entropy, "optimizer": torch.optim.AdamW},
        "pipeline": {"stages": 2, "microbatches": 4},
    }
    return {name: {**made.get(name, {}), **changes.get(name, {})} for name in {**made, **changes}}


class Words(StrEnum):
    SHORT = "fp32"


class Model:
    @classmethod
    def layers(cls) -> list[torch.nn.Module]:
        return []

    def dataset(self) -> None: ...


def test_objects_become_the_paths_that_a_job_file_would_name() -> None:
    train = {
        "optimizer_args": {"betas": (0.9, 0.95), "lr": np.float64(0.1)},
        "schedule": torch.optim.lr_scheduler.CosineAnnealingLR,
        "groups": decay_matrices,
        "metrics": {"accuracy": accuracy},
        "precision": Words.SHORT,
        "clip_norm": None,
    }
    job = culm.make_job(**sections(train=train, data={"collate": torch.utils.data.default_collate}), evaluate=None)
    assert job.model.layers == "culm.examples.digits_mlp:layers"
    assert job.data.collate == "torch.utils.data:default_collate"
    assert (job.train.loss, job.train.optimizer) == ("torch.nn.functional:cross_entropy", "torch.optim:AdamW")
    assert job.train.schedule == "torch.optim.lr_scheduler:CosineAnnealingLR"
    assert job.train.groups == "culm.optim:decay_matrices"
    assert job.train.metrics == {"accuracy": "culm.metrics:accuracy"}
    assert job.train.optimizer_args == {"betas": [0.9, 0.95], "lr": 0.1}
    assert [type(x) for x in job.train.optimizer_args.values()] == [list, float]
    assert (job.train.precision, type(job.train.precision)) == ("fp32", str)
    assert parse_job(job_to_toml(job)) == job
    for path in job.code:
        assert path_of(load_callable(path, ""), "") == path


def test_a_job_is_the_same_through_its_file(tmp_path: Path) -> None:
    job = culm.make_job(**sections())
    culm.save_job(job, tmp_path / "job.toml")
    assert culm.load_job(tmp_path / "job.toml") == job


def test_all_that_a_job_names_is_known_as_its_code() -> None:
    everything = sections(
        data={"collate": torch.utils.data.default_collate},
        train={"groups": digits_mlp.layers, "schedule": digits_mlp.layers, "metrics": {"a": digits_mlp.layers}},
        evaluate={"dataset": digits_mlp.dataset, "every": 1, "samples": 1, "metrics": {"a": digits_mlp.layers}},
    )
    job = culm.make_job(**everything)
    assert sorted(job.code) == sorted(re.findall(r'"([\w.]+:[\w.]+)"', job_to_toml(job)))
    keys = page().count("| `module:callable` |") + page().count("| `metrics` |")
    assert len(job.code) == keys - 1, "it has every key, but graph.data: a job with a graph has no dataset of its own"


def made_within() -> Any:
    def layers() -> None: ...

    return layers


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"layers": lambda: 0}}, r"^make_job, model.layers: a lambda cannot be imported .*%%writefile"),
        ({"train": {"loss": made_within()}}, "train.loss: layers, made within a function, cannot be imported"),
        ({"train": {"loss": torch.nn.CrossEntropyLoss()}}, "an object of the class CrossEntropyLoss .*write the path"),
        ({"data": {"dataset": functools.partial(digits_mlp.dataset, 3)}}, "a partial has no .*arguments by args"),
        ({"data": {"dataset": Model().dataset}}, "test_naming:Model.dataset as it is imported is another object"),
        ({"train": {"metrics": {"a": lambda: 0}}}, "make_job, train.metrics.a: a lambda"),
        ({"model": {"args": {"f": digits_mlp.layers}}}, "make_job, model.args.f: it is a function, which a job file"),
        ({"model": {"args": {"width": np.int64(3)}}}, "make_job, model.args.width: it is a int64"),
        ({"model": {"args": {"width": None}}}, "make_job, model.args.width: it is None, which .*; leave it out"),
        ({"model": {"args": {"sizes": [{1: 2}]}}}, r"make_job, model.args.sizes\[0\]: its key 1 is no text"),
        ({"train": {"losss": F.cross_entropy}}, "make_job, train.losss: unknown key 'losss'; did you mean loss"),
        ({"trian": {}}, "make_job, trian: unknown key 'trian'; did you mean train"),
        ({"job": {"steps": 0}}, "make_job, job.steps: 0 is too small; set it to 1 or more"),
        ({"job": {"steps": None}}, "make_job, job.steps: it is missing; add it to the job"),
    ],
)
def test_what_no_job_file_could_say_is_refused_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(culm.JobError, match=says) as refused:
        culm.make_job(**sections(**changes))
    assert "\n" not in str(refused.value)


def test_a_section_is_a_mapping() -> None:
    wrong: Any = 3
    with pytest.raises(culm.JobError, match="make_job, train: "):
        culm.make_job(**{**sections(), "train": wrong})


def test_a_class_method_of_a_module_has_a_path() -> None:
    assert path_of(Model.layers, "") == f"{__name__}:Model.layers"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where modules are imported from; what a test imports there is forgotten."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


SCRIPT = """
import sys
from culm.pipeline.user_code.naming import path_of
WIDTH = 64
NAMES = sys.argv[1:]
class Base:
    depth = 1
    def size(self): return WIDTH
    class Inner:
        def __init__(self, given=()): self.given = given
class Deep(Base):
    other = Base
    def build(self): return self.size()
def width(least=2): return Deep().build()
def names(): return NAMES
def layers(): return [width()]
if __name__ == "__main__":
    {program}
    found = path_of(layers, "model.layers")
"""


def as_program(script: Path, text: str) -> Any:
    script.write_text(text)
    return runpy.run_path(str(script), run_name="__main__")["found"]


def test_functions_of_a_script_are_those_of_its_file(folder: Path) -> None:
    assert as_program(folder / "train_a.py", SCRIPT.format(program="pass")) == "train_a:layers"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SCRIPT.replace("if __name__", "if True or __name__").format(program=""), "would run all of train_b.py"),
        (SCRIPT.format(program="WIDTH = 128"), "WIDTH is 128 in this script, and 64 where .*model.args"),
        (
            SCRIPT.format(program="def layers(): return []"),
            "layers in this script is another one than where nodes import it",
        ),
        (SCRIPT.format(program="def width(): return 3"), "width in this script is another one than where"),
        (SCRIPT.format(program="Base.depth = 2"), "Base in this script is another one than where"),
        (SCRIPT.format(program="Base.Inner.__init__ = lambda self: None"), "Base in this script is another one"),
        (SCRIPT.replace("least=2", "least=sys.argv[1]").format(program=""), "width in this script is"),
        (SCRIPT.format(program="def other(): return []\n    layers = other"), "module 'train_b' has no 'other'"),
        (
            SCRIPT.replace("[width()]", "names()").format(program=""),
            r"NAMES is \['a'\] in this script, and \['stage'\]",
        ),
        (SCRIPT.replace("def layers", "refuse()\ndef layers").format(program=""), "belongs under if __name__"),
    ],
)
def test_a_script_that_nodes_would_not_find_alike_is_refused(
    folder: Path, text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_b.py", "a"])
    refuse = "import culm.pipeline.user_code.imports as i\ndef refuse(): i.refuse_while_importing('a run')\n"
    with pytest.raises(culm.JobError, match=says):
        as_program(folder / "train_b.py", refuse + text)


def test_a_script_whose_name_another_module_has_is_refused(folder: Path) -> None:
    (folder / "scripts").mkdir()
    (folder / "train_c.py").write_text(SCRIPT.format(program="pass"))
    with pytest.raises(culm.JobError, match=r"nodes would import .*train_c.py in place of .*scripts.train_c.py"):
        as_program(folder / "scripts" / "train_c.py", SCRIPT.format(program="pass"))
    with pytest.raises(culm.JobError, match=r"train-d\.py cannot be imported under that name"):
        as_program(folder / "train-d.py", SCRIPT.format(program="pass"))


def test_a_function_of_a_notebook_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    exec("def layers(): return []", cell)
    with pytest.raises(culm.JobError, match=r"nodes cannot import layers, which no file holds; .*%%writefile model.py"):
        path_of(cell["layers"], "model.layers")


def test_no_run_begins_within_an_import_of_a_job(folder: Path) -> None:
    """Each node would import the module, and begin a run in turn."""
    program = "import culm\ndef layers(): return []\nculm.run('nowhere.toml')\n"
    (folder / "program.py").write_text(program)
    with pytest.raises(culm.JobError, match="a run is called while module 'program' is imported"):
        load_callable("program:layers", "model.layers")
    refuse_while_importing("a run")


def test_a_module_that_was_edited_since_its_import_is_refused(folder: Path) -> None:
    file = folder / "edited_model.py"
    file.write_text(
        "import edited_too\nWIDTH = 3\ndef layers(): return []\nclass Data:\n    def __len__(self): return 5\n"
    )
    (folder / "edited_too.py").write_text("def inner(): return 1\n")
    module, beside = (importlib.import_module(name) for name in ("edited_model", "edited_too"))
    module.Data.own = module.Data
    changes = r"edited_model\.py was changed .*importlib\.reload\(edited_model\)"
    before = file.read_text()
    file.write_text(before.replace("5", "7"))
    with pytest.raises(culm.JobError, match=changes):  # though nobody had looked at it before
        culm.make_job(**sections(model={"layers": module.layers}))
    file.write_text(before)
    job = culm.make_job(**sections(model={"layers": module.layers}))
    file.write_text(before.replace("3", "4"))
    for again in (lambda: culm.make_job(**sections(model={"layers": module.layers})), lambda: culm.run(job)):
        with pytest.raises(culm.JobError, match=changes):
            again()
    file.write_text(before)
    (folder / "edited_too.py").write_text("def inner(): return 2\n")
    with pytest.raises(culm.JobError, match=r"edited_too\.py was changed"):
        culm.run(job)
    os.utime(folder / "edited_too.py", (1, 1))
    importlib.reload(beside)
    stale = module.layers
    os.utime(file, (1, 1))  # or Python would take the code that it has compiled in this very second
    importlib.reload(module)
    with pytest.raises(culm.JobError, match="is another object than this one"):
        culm.make_job(**sections(model={"layers": stale}))
    assert culm.make_job(**sections(model={"layers": module.layers})).model.layers == "edited_model:layers"

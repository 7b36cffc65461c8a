"""Job files that no run can use: each gets one line that says what, where, and the mend, before anything starts.

Each case is a small valid job with one change.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.hostile.commands import in_process

GONE = object()  # a key that is left out
MODELS = "tests.hostile.models"

Case = tuple[dict[str, Any], str]  # changes of keys, and what the line says

SECTIONS: dict[str, Case] = {
    "no job": ({"job": GONE}, "job"),
    "no model": ({"model": GONE}, "model"),
    "no data": ({"data": GONE}, "data"),
    "no train": ({"train": GONE}, "train"),
    "no pipeline": ({"pipeline": GONE}, "pipeline"),
    "an unknown section": ({"jobs.steps": 3}, "did you mean job?"),
    "a section that is a number": ({"job": 3}, "job"),
    "a section that is a list": ({"model": [1]}, "model"),
    "an unknown section far from all": ({"zzz.x": 1}, "known here"),
}

JOB: dict[str, Case] = {
    "no steps": ({"job.steps": GONE}, "job.steps: it is missing"),
    "steps 0": ({"job.steps": 0}, "job.steps"),
    "steps -1": ({"job.steps": -1}, "job.steps"),
    "steps a float": ({"job.steps": 2.5}, "job.steps"),
    "steps text": ({"job.steps": "many"}, "job.steps"),
    "steps true": ({"job.steps": True}, "job.steps"),
    "steps 2**63": ({"job.steps": 2**63}, "job.steps"),
    "steps 10**30": ({"job.steps": 10**30}, "job.steps"),
    "steps inf": ({"job.steps": float("inf")}, "job.steps"),
    "steps misspelt": ({"job.stepz": 3}, "did you mean steps?"),
    "seed 2**70": ({"job.seed": 2**70}, "job.seed"),
    "seed -1": ({"job.seed": -1}, "job.seed"),
    "seed -2**70": ({"job.seed": -(2**70)}, "job.seed"),
    "seed a float": ({"job.seed": 1.0}, "job.seed"),
    "seed text": ({"job.seed": "1"}, "job.seed"),
    "threads 0": ({"job.threads": 0}, "job.threads"),
    "threads -4": ({"job.threads": -4}, "job.threads"),
    "threads 10**9": ({"job.threads": 10**9}, "job.threads"),
    "threads 2**40": ({"job.threads": 2**40}, "job.threads"),
    "device tpu": ({"job.device": "tpu"}, "job.device"),
    "device empty": ({"job.device": ""}, "job.device"),
    "device cuda:1": ({"job.device": "cuda:1"}, "job.device"),
    "device a number": ({"job.device": 0}, "job.device"),
    "name with a slash": ({"job.name": "a/b"}, "job.name"),
    "name with dots up": ({"job.name": "../../x"}, "job.name"),
    "name of dots": ({"job.name": ".."}, "job.name"),
    "name empty": ({"job.name": ""}, "job.name"),
    "name with a space": ({"job.name": "a b"}, "job.name"),
    "name with a newline": ({"job.name": "a\n"}, "job.name"),
    "name with markup": ({"job.name": "[red]a"}, "job.name"),
    "name with an escape": ({"job.name": "a\x1b[31m"}, "job.name"),
    "name of 300": ({"job.name": "a" * 300}, "job.name"),
    "name beyond ASCII": ({"job.name": "halm-ü"}, "job.name"),
    "name a number": ({"job.name": 7}, "job.name"),
    "name that begins with a dash": ({"job.name": "-rf"}, "job.name"),
}

MODEL: dict[str, Case] = {
    "no layers": ({"model.layers": GONE}, "model.layers"),
    "layers without a colon": ({"model.layers": "tests.hostile.models"}, "module:callable"),
    "layers empty": ({"model.layers": ""}, "module:callable"),
    "layers of two colons": ({"model.layers": "a:b:c"}, "module:callable"),
    "layers of a path": ({"model.layers": "tests/hostile/models.py:layers"}, "module:callable"),
    "layers of a relative module": ({"model.layers": ".models:layers"}, "module:callable"),
    "layers of a parent module": ({"model.layers": "..models:layers"}, "module:callable"),
    "layers of dots": ({"model.layers": "...:..."}, "module:callable"),
    "layers of two dots within": ({"model.layers": "tests..hostile:layers"}, "module:callable"),
    "layers that end in a dot": ({"model.layers": f"{MODELS}:layers."}, "module:callable"),
    "layers that begin with a digit": ({"model.layers": "1models:layers"}, "module:callable"),
    "layers of a newline": ({"model.layers": f"{MODELS}:layers\n"}, "module:callable"),
    "layers a number": ({"model.layers": 3}, "model.layers"),
    "layers nowhere": ({"model.layers": "nowhere_at_all:layers"}, "cannot be imported"),
    "layers nowhere in a package": ({"model.layers": "tests.hostile.modls:layers"}, "cannot be imported"),
    "layers misspelt": ({"model.layers": f"{MODELS}:layer"}, "did you mean layers?"),
    "layers not callable": ({"model.layers": f"{MODELS}:not_callable"}, "cannot be called"),
    "layers of a long text": ({"model.layers": "a" * 100_000}, "module:callable"),
    "args unknown": ({"model.args": {"widht": 8}}, "model.layers"),
    "args of a wrong type": ({"model.args": {"width": "wide"}}, "model.layers"),
    "args a list": ({"model.args": [1, 2]}, "model.args"),
    "args negative": ({"model.args": {"width": -8}}, "model.layers"),
    "args huge": ({"model.args": {"width": 10**15}}, "model.layers"),
    "layers raise": ({"model.layers": f"{MODELS}:raises"}, "RuntimeError"),
    "layers exit": ({"model.layers": f"{MODELS}:exits"}, "SystemExit"),
    "layers none": ({"model.layers": f"{MODELS}:interrupts_nothing"}, "NoneType"),
    "layers empty list": ({"model.layers": f"{MODELS}:empty"}, "no layers"),
    "layers of numbers": ({"model.layers": f"{MODELS}:of_numbers"}, "layer 0 is a int"),
    "layers of strings": ({"model.layers": f"{MODELS}:of_strings"}, "layer 0 is a str"),
    "layers a generator": ({"model.layers": f"{MODELS}:generator"}, "generator"),
    "layers a ModuleDict": ({"model.layers": f"{MODELS}:module_dict"}, "ModuleDict"),
    "a layer that gives a tuple": ({"model.layers": f"{MODELS}:gives_tuple"}, "layer 2 (Linear) raised TypeError"),
    "a layer that gives a dict": ({"model.layers": f"{MODELS}:gives_dict"}, "layer 2 (Linear) raised TypeError"),
    "a layer that gives lists in lists": (
        {"model.layers": f"{MODELS}:gives_nested"},
        "layer 2 (Linear) raised TypeError",
    ),
    "a layer that gives nothing": ({"model.layers": f"{MODELS}:gives_none"}, "returned a NoneType"),
    "a layer that gives a number": ({"model.layers": f"{MODELS}:gives_number"}, "returned a float"),
    "a layer that raises": ({"model.layers": f"{MODELS}:layer_raises"}, "layer 1 (Wrapped) raised ValueError"),
    "a layer that exits": ({"model.layers": f"{MODELS}:layer_exits"}, "layer 1 (Wrapped) raised SystemExit"),
    "a layer of another width": ({"model.layers": f"{MODELS}:layer_wide"}, "layer 0 (Linear) raised"),
    "lazy layers": ({"model.layers": f"{MODELS}:lazy"}, "LazyLinear"),
    "lazy constructors": ({"model.layers": f"{MODELS}:lazy_constructors"}, "LazyLinear"),
    "a constructor that raises": ({"model.layers": f"{MODELS}:constructor_raises"}, "layer 1"),
    "a constructor of a tensor": ({"model.layers": f"{MODELS}:constructor_of_tensor"}, "layer 1"),
}

DATA: dict[str, Case] = {
    "no dataset": ({"data.dataset": GONE}, "data.dataset"),
    "a dataset nowhere": ({"data.dataset": f"{MODELS}:datasets"}, "did you mean dataset?"),
    "dataset args unknown": ({"data.args": {"sample": 3}}, "data.dataset"),
    "dataset args negative": ({"data.args": {"samples": -3}}, "data.dataset"),
    "a dataset without samples": ({"data.dataset": f"{MODELS}:no_items"}, "data.dataset"),
    "a dataset of a list without samples": ({"data.dataset": f"{MODELS}:a_list"}, "data.dataset"),
    "a dataset of a bad length": ({"data.dataset": f"{MODELS}:bad_length"}, "data.dataset"),
    "a dataset of a negative length": ({"data.dataset": f"{MODELS}:negative_length"}, "data.dataset"),
    "a dataset that is a number": ({"data.dataset": f"{MODELS}:a_number"}, "data.dataset"),
    "an iterable dataset": ({"data.dataset": f"{MODELS}:iterable"}, "data.dataset"),
    "dict samples": ({"data.dataset": f"{MODELS}:items_dict"}, "data.dataset"),
    "single samples": ({"data.dataset": f"{MODELS}:items_single"}, "data.dataset"),
    "samples of three": ({"data.dataset": f"{MODELS}:items_triple"}, "data.dataset"),
    "nested inputs": ({"data.dataset": f"{MODELS}:items_nested"}, "layer 0 (Linear) raised TypeError"),
    "dict inputs": ({"data.dataset": f"{MODELS}:items_dict_input"}, "layer 0 (Linear) raised TypeError"),
    "nested targets": ({"data.dataset": f"{MODELS}:items_nested_target"}, "the loss raised TypeError"),
    "samples of text": ({"data.dataset": f"{MODELS}:items_strings"}, "data.dataset"),
    "samples of nothing": ({"data.dataset": f"{MODELS}:items_none"}, "data.dataset"),
    "samples that raise": ({"data.dataset": f"{MODELS}:items_raise"}, "data.dataset"),
    "samples that exit": ({"data.dataset": f"{MODELS}:items_exit"}, "data.dataset"),
    "samples of several lengths": ({"data.dataset": f"{MODELS}:items_ragged"}, "data.dataset"),
    "microbatch 0": ({"data.microbatch": 0}, "data.microbatch"),
    "microbatch -1": ({"data.microbatch": -1}, "data.microbatch"),
    "microbatch 10**9": ({"data.microbatch": 10**9}, "data.microbatch"),
    "microbatch 10**30": ({"data.microbatch": 10**30}, "data.microbatch"),
    "microbatch larger than the dataset": ({"data.microbatch": 65}, "data.microbatch"),
    "microbatch a float": ({"data.microbatch": 4.0}, "data.microbatch"),
    "shuffle text": ({"data.shuffle": "yes"}, "data.shuffle"),
    "shuffle a number": ({"data.shuffle": 1}, "data.shuffle"),
    "tokens 0": ({"data.tokens_per_sample": 0}, "data.tokens_per_sample"),
    "tokens 10**30": ({"data.tokens_per_sample": 10**30}, "data.tokens_per_sample"),
}

TRAIN: dict[str, Case] = {
    "no loss": ({"train.loss": GONE}, "train.loss"),
    "a loss nowhere": ({"train.loss": "torch.nn.functional:cross_entropi"}, "did you mean cross_entropy?"),
    "a loss of two numbers": ({"train.loss": f"{MODELS}:loss_of_two"}, "train.loss"),
    "a loss that is no tensor": ({"train.loss": f"{MODELS}:loss_number"}, "train.loss"),
    "a loss of nothing": ({"train.loss": f"{MODELS}:loss_none"}, "train.loss"),
    "a loss that raises": ({"train.loss": f"{MODELS}:loss_raises"}, "train.loss"),
    "a loss that exits": ({"train.loss": f"{MODELS}:loss_exits"}, "train.loss"),
    "a loss of one argument": ({"train.loss": f"{MODELS}:loss_of_one"}, "train.loss"),
    "a loss class": ({"train.loss": "torch.nn:CrossEntropyLoss"}, "train.loss"),
    "no optimizer": ({"train.optimizer": GONE}, "train.optimizer"),
    "an optimizer nowhere": ({"train.optimizer": "torch.optim:AdamX"}, "train.optimizer"),
    "an optimizer that is none": (
        {"train.optimizer": f"{MODELS}:no_optimizer", "train.optimizer_args": {}},
        "returns no optimizer",
    ),
    "an optimizer that exits": (
        {"train.optimizer": f"{MODELS}:optimizer_exits", "train.optimizer_args": {}},
        "SystemExit",
    ),
    "LBFGS": ({"train.optimizer": "torch.optim:LBFGS"}, "closure"),
    "SparseAdam": ({"train.optimizer": "torch.optim:SparseAdam"}, "train.optimizer"),
    "optimizer args unknown": ({"train.optimizer_args": {"lrr": 0.1}}, "train.optimizer_args"),
    "a negative learning rate": ({"train.optimizer_args": {"lr": -0.1}}, "train.optimizer_args"),
    "a learning rate of text": ({"train.optimizer_args": {"lr": "0.1"}}, "train.optimizer_args"),
    "optimizer args that name parameters": ({"train.optimizer_args": {"params": []}}, "train.optimizer_args"),
    "clip 0": ({"train.clip_norm": 0}, "train.clip_norm"),
    "clip -1": ({"train.clip_norm": -1.0}, "train.clip_norm"),
    "clip nan": ({"train.clip_norm": float("nan")}, "train.clip_norm"),
    "clip inf": ({"train.clip_norm": float("inf")}, "train.clip_norm"),
    "clip text": ({"train.clip_norm": "1.0"}, "train.clip_norm"),
    "clip true": ({"train.clip_norm": True}, "train.clip_norm"),
}

PIPELINE: dict[str, Case] = {
    "no stages": ({"pipeline.stages": GONE}, "pipeline.stages"),
    "stages 0": ({"pipeline.stages": 0}, "pipeline.stages"),
    "stages 10**30": ({"pipeline.stages": 10**30}, "pipeline.stages"),
    "more stages than layers": ({"pipeline.stages": 5}, "set it to 4 or less"),
    "most stages 0": ({"pipeline.most_stages": 0}, "pipeline.most_stages"),
    "most stages below stages": ({"pipeline.most_stages": 1}, "most_stages 1 is less than stages"),
    "no microbatches": ({"pipeline.microbatches": GONE}, "pipeline.microbatches"),
    "microbatches 0": ({"pipeline.microbatches": 0}, "pipeline.microbatches"),
    "microbatches 10**9": ({"pipeline.microbatches": 10**9}, "pipeline.microbatches"),
    "microbatches 10**30": ({"pipeline.microbatches": 10**30}, "pipeline.microbatches"),
    "pipelines 0": ({"pipeline.pipelines": 0}, "pipeline.pipelines"),
    "lead 0": ({"pipeline.lead": 0}, "pipeline.lead"),
    "lead 10**30": ({"pipeline.lead": 10**30}, "pipeline.lead"),
    "schedule unknown": ({"pipeline.schedule": "gpipe"}, "pipeline.schedule"),
    "schedule misspelt": ({"pipeline.schedule": "1f1B"}, "did you mean 1f1b?"),
}

RESILIENCE: dict[str, Case] = {
    "redundancy unknown": ({"resilience.redundancy": "lasy"}, "did you mean lazy?"),
    "redundancy false": ({"resilience.redundancy": False}, "resilience.redundancy"),
    "copies many": ({"resilience.copies": "many"}, "resilience.copies"),
    "copies 1": ({"resilience.copies": 1}, "resilience.copies"),
    "copies 10**30": ({"resilience.copies": 10**30}, "resilience.copies"),
    "copies without redundancy": (
        {"resilience.redundancy": "off", "resilience.copies": 3},
        "redundancy is off, so there are no copies; remove copies = 3",
    ),
    "seed bytes 0": ({"resilience.seed_bytes_per_second": 0}, "resilience.seed_bytes_per_second"),
    "seed bytes 10**30": ({"resilience.seed_bytes_per_second": 10**30}, "resilience.seed_bytes_per_second"),
    "ship every -1": ({"resilience.ship_every": -1}, "resilience.ship_every"),
    "ship every 10**30": ({"resilience.ship_every": 10**30}, "resilience.ship_every"),
    "redundant bytes 0": ({"resilience.redundant_bytes": 0}, "resilience.redundant_bytes"),
    "redundant bytes 10**30": ({"resilience.redundant_bytes": 10**30}, "resilience.redundant_bytes"),
}

CHECKPOINT: dict[str, Case] = {
    "no url": ({"checkpoint.every": 2}, "checkpoint.url"),
    "no every": ({"checkpoint.url": "memory://x"}, "checkpoint.every"),
    "every 0": ({"checkpoint.url": "memory://x", "checkpoint.every": 0}, "checkpoint.every"),
    "every 10**30": ({"checkpoint.url": "memory://x", "checkpoint.every": 10**30}, "checkpoint.every"),
    "keep 0": ({"checkpoint.url": "memory://x", "checkpoint.every": 2, "checkpoint.keep": 0}, "checkpoint.keep"),
    "url empty": ({"checkpoint.url": "", "checkpoint.every": 2}, "checkpoint.url"),
    "url of an unknown kind": ({"checkpoint.url": "fyle:///tmp/x", "checkpoint.every": 2}, "fyle:///tmp/x"),
    "url of a package that is missing": ({"checkpoint.url": "gs://bucket/x", "checkpoint.every": 2}, "culm[gs]"),
    "url in a folder that is a file": ({"checkpoint.url": "/dev/null/x", "checkpoint.every": 2}, "/dev/null"),
    "url where nobody may write": ({"checkpoint.url": "file:///proc/x", "checkpoint.every": 2}, "/proc"),
    "url with a password": ({"checkpoint.url": "ftp://me:pw@host/x", "checkpoint.every": 2}, "ftp://me:***@host/x"),
    "url with a signature": (
        {"checkpoint.url": "https://host/x?X-Amz-Signature=abc&y=1", "checkpoint.every": 2},
        "X-Amz-Signature=***&y=1",
    ),
    "url of a variable that is not there": (
        {"checkpoint.url": "ftp://me:${CULM_NO_SUCH_THING}@host/x", "checkpoint.every": 2},
        "CULM_NO_SUCH_THING",
    ),
    "url a number": ({"checkpoint.url": 3, "checkpoint.every": 2}, "checkpoint.url"),
}

CASES = SECTIONS | JOB | MODEL | DATA | TRAIN | PIPELINE | RESILIENCE | CHECKPOINT

TEXTS = {
    "empty": ("", "missing"),
    "no TOML": ("[job\nsteps = 3", "this is not valid TOML"),
    "JSON": ('{"job": {"steps": 3}}', "this is not valid TOML"),
    "a key twice": ("[job]\nsteps = 3\nsteps = 4", "this is not valid TOML"),
    "a number of 5000 digits": (f"x = {'9' * 5000}", "a number is too long"),
    "deep nesting": ("x = " + "[" * 5000 + "]" * 5000, "this is not valid TOML"),
}

MODULES = {
    "a module that raises": ("raise ValueError('no\\nluck')", "ValueError"),
    "a module that raises KeyError": ("{}['x']", "KeyError"),
    "a module that exits": ("raise SystemExit(0)", "tried to end the process"),
    "a module that exits with a word": ("import sys\nsys.exit('enough')", "tried to end the process"),
    "a module with a syntax error": ("def layers(:\n    pass", "SyntaxError"),
    "a module with tabs": ("def layers():\n\tx = 1\n        return x", "TabError"),
    "a module of zeros": ("\0\0\0", "null bytes"),
    "a module that imports what is not there": ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
    "a module that imports a name that is not there": ("from torch import nothing_at_all", "nothing_at_all"),
    "a module that imports itself": ("from broken import layers", "broken"),
    "a module that recurses": ("def f(): return f()\nf()", "RecursionError"),
    "a module with a broken __getattr__": ("def __getattr__(name): raise ValueError(name)", "ValueError"),
    "a module that wants to be asked": ("input('really? ')", "EOFError"),
    "a module that asserts": ("assert False", "AssertionError"),
}


def job_with(changes: dict[str, Any]) -> dict[str, Any]:
    """The valid job, changed."""
    job: dict[str, Any] = {
        "job": {"name": "small", "steps": 3},
        "model": {"layers": f"{MODELS}:layers"},
        "data": {"dataset": f"{MODELS}:dataset", "microbatch": 4},
        "train": {
            "loss": "torch.nn.functional:cross_entropy",
            "optimizer": "torch.optim:SGD",
            "optimizer_args": {"lr": 0.1},
        },
        "pipeline": {"stages": 2, "microbatches": 2},
    }
    for path, value in changes.items():
        section, _, key = path.partition(".")
        table = job if not key else job.setdefault(section, {})
        if value is GONE:
            del table[key or section]
        else:
            table[key or section] = value
    return job


def refused(folder: Path, text: str, command: str = "run") -> str:
    """The line that the command says of a job, and that nothing was left behind."""
    (folder / "job.toml").write_text(text)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    line = in_process(command, "job.toml", folder=folder).line
    left = {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "__pycache__"}
    assert left == before, "a refused job leaves nothing behind"
    return line


@pytest.mark.parametrize("name", CASES)
def test_a_job_with_one_mistake_gets_one_line(name: str, tmp_path: Path) -> None:
    changes, said = CASES[name]
    line = refused(tmp_path, tomli_w.dumps(job_with(changes)))
    assert said in line


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_job_gets_one_line(name: str, tmp_path: Path) -> None:
    text, said = TEXTS[name]
    assert said in refused(tmp_path, text)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_cannot_be_imported_gets_one_line(name: str, tmp_path: Path) -> None:
    code, said = MODULES[name]
    (tmp_path / "broken.py").write_text(code)
    assert said in refused(tmp_path, tomli_w.dumps(job_with({"model.layers": "broken:layers"})))


def test_the_valid_job_is_one() -> None:
    from culm.pipeline.job import parse_job
    from culm.pipeline.user_code.check import check_job

    check_job(parse_job(tomli_w.dumps(job_with({}))))
    assert len(CASES) + len(TEXTS) + len(MODULES) >= 130
    assert tomllib.loads(tomli_w.dumps(job_with({})))["job"]["steps"] == 3

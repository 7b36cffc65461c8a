"""Layers that torch.compile has compiled: the same bits wherever they run, or one clear line."""

import subprocess
import sys
from collections.abc import Iterator
from contextvars import Context
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.identity import changes
from culm.pipeline.job import Job, with_values
from culm.pipeline.user_code import compiling
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from tests.unit.exactness import SGD, gives_the_plain_loops_bits, make_job

HERE = "tests.unit.test_compiling"


def linear(count: int) -> list[Any]:
    return [partial(nn.Linear, 8, 8, bias=False)] * count


class Asking(nn.Linear):
    """Its way depends on its numbers, which no compiled forward can know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [3, 8]
        return super().forward(x if bool(x.sum() > 0) else -x)


def asking(count: int) -> list[Any]:
    return [partial(Asking, 8, 8)] * count


def wrapped(count: int) -> list[Any]:
    return [torch.compile(nn.Linear(8, 8)), *[nn.Linear(8, 8)] * (count - 1)]


def in_place(count: int) -> list[Any]:
    layers = [nn.Sequential(nn.Linear(8, 8)) for _ in range(count)]
    layers[0][0].compile()
    return list(layers)


def in_constructors(count: int) -> list[Any]:
    return [lambda: torch.compile(nn.Linear(8, 8))] * count


def scripted(count: int) -> list[Any]:
    return [torch.jit.script(nn.Linear(8, 8)) for _ in range(count)]


@torch.compile(backend="eager")  # whatever the backend is: it is not Culm's
def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


class Calling(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return squared(super().forward(x))


def calling(count: int) -> list[Any]:
    return [partial(Calling, 8, 8)] * count


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test has compiled by itself is nothing that later ones have run."""
    yield
    from torch._dynamo.utils import counters

    counters["stats"]["unique_graphs"] = compiling._own_graphs


def job_of(layers: str, compiles: bool = True) -> Job:
    job = make_job(2, 2, SGD, False, count=2)
    model = job.model.model_copy(update={"layers": f"{HERE}:{layers}"})
    return with_values(job.model_copy(update={"model": model}), {"train.compile": compiles, "job.steps": 2})


def test_compiled_layers_have_the_bits_of_a_loop_that_compiles_them_too() -> None:
    """A product of matrices needs no kernel of its own, so this takes seconds; `tests/models/test_compiled.py` more."""
    job = job_of("linear")
    gives_the_plain_loops_bits(job)
    assert compiling._own_graphs
    assert [name for name, _ in ModelSource(job).build(0).named_parameters()] == ["weight"]


def test_a_layer_that_cannot_be_compiled_as_a_whole_is_refused_with_its_place() -> None:
    layer = ModelSource(job_of("asking")).build(0)
    with pytest.raises(JobError, match=r"compile the whole of a Asking: .* \(test_compiling.py, line \d+\)"):
        layer(torch.ones(3, 8))


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("layers", ["wrapped", "in_place", "in_constructors"])
def test_layers_that_the_jobs_code_compiles_are_refused(layers: str, compiles: bool) -> None:
    with pytest.raises(JobError, match=r"layer 0 uses torch.compile itself.*train.compile = true"):
        ModelSource(job_of(layers, compiles)).outlines()


def test_a_layer_of_torchscript_is_refused() -> None:
    with pytest.raises(JobError, match=r"TorchScript.*not torch.jit.script of it"):
        ModelSource(job_of("scripted")).build(0)
    ModelSource(job_of("scripted", compiles=False)).build(0)


def test_settings_of_the_jobs_code_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would hold for the thread that imported it, and for no other."""
    import torch._inductor.config as inductor

    monkeypatch.setattr(compiling, "_own_graphs", 0)  # before anything was compiled

    def refused() -> None:
        words = r"sets torch._inductor.config.epilogue_fusion = False"
        with inductor.patch({"epilogue_fusion": False}), pytest.raises(JobError, match=words):
            compiling.refuse_settings()

    Context().run(refused)  # where nothing is set as yet


def test_torchs_own_switch_is_no_setting_of_the_jobs_code() -> None:
    """Culm turns it on and off again; a second job of the same script was refused."""
    code = (
        "import torch, torch._inductor.config\n"
        "from culm.pipeline.user_code.compiling import refuse_settings\n"
        "torch.use_deterministic_algorithms(False)\n"
        "assert torch._inductor.config.codegen_config()\n"
        "refuse_settings()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_function_that_the_jobs_code_compiles_is_refused() -> None:
    with pytest.raises(JobError, match=r"a forward, the loss or a metric uses torch.compile itself"):
        check_job(job_of("calling", compiles=False))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"job.device": "cuda"}, "leave one of them out"),
        ({"job.threads": 2}, "set job.threads to 1"),
        ({"pipeline.schedule": "zb-h1"}, 'set pipeline.schedule to "1f1b"'),
    ],
)
def test_what_is_not_exact_beside_it_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        with_values(job_of("linear"), values)


def test_a_machine_without_a_compiler_is_told_what_to_install() -> None:
    import torch._inductor.config as inductor

    compiling._compiler.cache_clear()
    try:
        words = r"no C\+\+ compiler on this machine; install one"
        with inductor.patch({"cpp.cxx": (None, "no-such-compiler")}), pytest.raises(JobError, match=words):
            compiling.compiler_in_words()
    finally:
        compiling._compiler.cache_clear()


def test_a_run_is_not_resumed_with_and_without_it() -> None:
    found = changes(job_of("linear", compiles=False), job_of("linear"))
    assert [(change.part, change.key) for change in found] == [("train", "train.compile")]

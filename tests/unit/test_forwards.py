"""Mixed precision and activation checkpointing, cut anywhere, give the bits of a loop that knows nothing of cuts."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.identity import changes
from culm.pipeline.job import Job, with_values
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.stage import Stage
from tests.unit.exactness import ADAMW, SGD, build_all, gives_the_plain_loops_bits, make_job

HERE = "tests.unit.test_forwards"


class Thrice(nn.Module):
    """Uses its input three times, as attention does, and its weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        y: torch.Tensor = self.query(x) * torch.tanh(self.key(x)) + self.value(self.value(x))
        return x + y


class Float(nn.Module):
    """Hands on float32, as a residual stream of full precision does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()


def layers(count: int) -> list[Any]:
    attention = partial(nn.TransformerEncoderLayer, 8, 2, 16)
    norms = [partial(nn.BatchNorm1d, 8), partial(nn.LayerNorm, 8)]
    return [
        partial(nn.Linear, 8, 8),
        Thrice,
        attention,
        *norms,
        Float,
        *[Thrice] * count,
        Float,
        Thrice,
        partial(nn.Linear, 8, 4),
    ]


def job_of(stages: int, splits: bool = False, **train: Any) -> Job:
    job = make_job(stages, 3, ADAMW, True, count=2)
    model = job.model.model_copy(update={"layers": f"{HERE}:layers"})
    pipeline = job.pipeline.model_copy(update={"schedule": "zb-h1"} if splits else {})
    train = {"precision": "bf16-mixed", **train}
    return job.model_copy(update={"model": model, "pipeline": pipeline, "train": job.train.model_copy(update=train)})


@pytest.mark.parametrize("splits", [False, True], ids=["1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8, 11])
def test_every_cut_gives_the_plain_loops_bits(stages: int, splits: bool) -> None:
    job = job_of(stages, splits)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("layers", ["layers", "varied_layers"])
@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["adamw", "sgd"])
def test_layers_in_bfloat16_give_the_plain_loops_bits(stages: int, layers: str, optimizer: tuple[str, str]) -> None:
    job = make_job(stages, 3, optimizer, True, 6)
    args = job.model.args if layers == "layers" else {}
    values = {"train.precision": "bf16", "model.layers": f"tests.unit.exactness:{layers}", "model.args": args}
    job = with_values(job, values)
    check_job(job)
    gives_the_plain_loops_bits(job)
    trained = [tensor for _, state in run_plain(job).layers for tensor in state.values() if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in trained} == {torch.bfloat16}


def test_it_changes_what_is_computed_and_keeps_the_weights_float32() -> None:
    mixed, plain = run_plain(job_of(2)), run_plain(job_of(2, precision="fp32"))
    assert mixed.sha256 != plain.sha256
    assert {tensor.dtype for _, state in mixed.layers for tensor in state.values()} == {torch.float32, torch.int64}


# ---- activation checkpointing: the plain loop has none ---------------------------------------------------------------


def again_of(stages: int, layers: str, splits: bool = False, **train: Any) -> Job:
    job = make_job(stages, 3, ADAMW, True, count=4)
    model = job.model.model_copy(update={"layers": layers})
    pipeline = job.pipeline.model_copy(update={"schedule": "zb-h1"} if splits else {})
    train = {"activation_checkpointing": True, **train}
    return job.model_copy(update={"model": model, "pipeline": pipeline, "train": job.train.model_copy(update=train)})


def dropping(count: int) -> list[Any]:
    """Layers that draw from torch, and keep no statistics."""
    block = [partial(nn.Linear, 8, 8), partial(nn.Dropout, 0.3), partial(nn.LayerNorm, 8)]
    return [*block * count, partial(nn.TransformerEncoderLayer, 8, 2, 16, 0.2), partial(nn.Linear, 8, 4)]


@pytest.mark.parametrize(
    ("layers", "precision"),
    [
        (f"{HERE}:dropping", "fp32"),
        (f"{HERE}:dropping", "bf16-mixed"),
        ("tests.unit.exactness:careless_layers", "fp32"),  # autocast knows no complex numbers
    ],
)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_forward_that_is_run_again_draws_the_same_numbers(stages: int, layers: str, precision: str) -> None:
    job = again_of(stages, layers, precision=precision)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("stages", [2, 4])
def test_backwards_in_two_halves_run_the_forward_again_as_well(stages: int) -> None:
    job = again_of(stages, f"{HERE}:dropping", splits=True)
    check_job(job)
    gives_the_plain_loops_bits(job)


def test_a_graph_keeps_the_inputs_of_layers_alone() -> None:
    kept: list[int] = []
    for again in (False, True):
        job = again_of(1, f"{HERE}:dropping", activation_checkpointing=again)
        source = ModelSource(job)
        stage = Stage(job, 0, build_all(source), True, True, source.loss)
        stage.begin_step(0)
        sizes: list[int] = []
        x, target = Microbatches(job, source.dataset()).microbatch(0, 0, 0)

        def keep(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            stage.forward(0, x, target)
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 4


def test_a_layer_that_counts_in_its_forward_is_refused() -> None:
    """Its forward would count twice."""
    with pytest.raises(JobError, match=r"BatchNorm1d|Block"):
        check_job(again_of(2, "tests.unit.exactness:layers"))


def test_a_run_may_be_resumed_with_and_without_it() -> None:
    """The bits are the same, and the memory of the next machines may be another."""
    layers = f"{HERE}:dropping"
    assert not changes(again_of(2, layers), again_of(2, layers, activation_checkpointing=False))
    assert changes(again_of(2, layers), again_of(2, layers, precision="bf16-mixed"))

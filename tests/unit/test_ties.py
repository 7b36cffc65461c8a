"""Parameters that several layers use are one: in every cut, with every optimizer; and who names them wrong is told."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline.buckets import LEAST
from culm.pipeline.clip import NORM_CHUNK
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend, Tie, addends, numbered
from culm.pipeline.tree import Block
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.tied import tied
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from tests.unit.exactness import ADAMW, NADAM, SGD, gives_the_plain_loops_bits, make_job

TOKENS, WIDTH = 11, 8
HERE = "tests.unit.test_ties"


class Head(nn.Module):
    """Its weight is the table of the embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, WIDTH]
        logits: torch.Tensor = self.out(self.norm(x))
        return logits


def embedding() -> nn.Module:
    return nn.Embedding(TOKENS, WIDTH)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU(), nn.Dropout(0.1))


def constructors() -> list[Any]:
    return [embedding, block, block, block, Head]


def modules() -> list[nn.Module]:
    """One object in two layers, and another one in three: a tie by identity."""
    made = [make() for make in constructors()]
    made[4].out.weight = made[0].weight
    made[2][0].weight = made[1][0].weight
    made[3][0].weight = made[1][0].weight
    return made


def said_by_constructors() -> list[Any]:
    """And a layer is put before one of them: the tie goes with its layers."""
    first, *others, last = constructors()
    made = [tied(first, {"weight": "table"}), *others, tied(last, {"out.weight": "table"})]
    return [*made[:4], block, *made[4:]]


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(*(torch.randint(0, TOKENS, (50,), generator=generator) for _ in range(2)))


def no_decay_for_vectors(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    """And for embeddings, wherever else they are used."""
    return {"weight_decay": 0.0} if parameter.dim() < 2 or (layer, name) == (0, "weight") else {"weight_decay": 0.3}


def job_of(
    layers: str, stages: int = 3, tied: list[list[str]] | None = None, optimizer: tuple[str, str] = ADAMW, **train: Any
) -> Job:
    job = make_job(stages, 3, optimizer, True, count=2)
    model = job.model.model_copy(update={"layers": f"{HERE}:{layers}", "args": {}, "tied": tied or []})
    data = job.data.model_copy(update={"dataset": f"{HERE}:dataset"})
    return job.model_copy(update={"model": model, "data": data, "train": job.train.model_copy(update=train)})


TIED = [["0.weight", "4.out.weight"]]


@pytest.mark.parametrize("splits", [False, True], ids=["1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize(("layers", "tied"), [("modules", []), ("constructors", TIED), ("said_by_constructors", [])])
def test_every_cut_gives_the_plain_loops_bits(layers: str, tied: list[list[str]], stages: int, splits: bool) -> None:
    job = job_of(layers, stages, tied)
    job = job.model_copy(update={"pipeline": job.pipeline.model_copy(update={"schedule": "zb-h1"} if splits else {})})
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("optimizer", [SGD, NADAM, ("torch.optim:Adafactor", "lr = 1e-2")])
@pytest.mark.parametrize("clips", [0.5, None], ids=["clipped", "unclipped"])
def test_optimizers_groups_and_averages_treat_all_uses_alike(optimizer: tuple[str, str], clips: float | None) -> None:
    job = job_of("modules", optimizer=optimizer, groups=f"{HERE}:no_decay_for_vectors", clip_norm=clips, average=0.9)
    gives_the_plain_loops_bits(job)


def test_tied_weights_stay_one_and_are_what_torch_makes_of_one_parameter() -> None:
    """To rounding: torch adds the uses of each microbatch before those of the next."""
    job = job_of("modules", clip_norm=None, optimizer=SGD)
    done = dict(run_plain(job).layers)
    assert torch.equal(done[0]["weight"], done[4]["out.weight"])
    assert torch.equal(done[1]["0.weight"], done[3]["0.weight"])
    untied = dict(run_plain(job_of("constructors", clip_norm=None, optimizer=SGD)).layers)
    assert not torch.equal(untied[0]["weight"], untied[4]["out.weight"])

    torch.manual_seed(0)
    table, other = nn.Parameter(torch.randn(TOKENS, WIDTH)), torch.randn(6, WIDTH)
    y = nn.functional.embedding(torch.arange(6), table) + other @ table.T @ table
    torch.autograd.backward(y.square().sum())
    uses = [nn.Parameter(table.detach().clone()) for _ in range(3)]
    y = nn.functional.embedding(torch.arange(6), uses[0]) + other @ uses[1].T @ uses[2]
    torch.autograd.backward(y.square().sum())
    total = sum(use.grad for use in uses if use.grad is not None)
    assert isinstance(total, torch.Tensor)
    assert table.grad is not None
    assert torch.allclose(total, table.grad)


def test_a_tied_parameter_begins_with_the_values_of_its_first_layer() -> None:
    source = ModelSource(job_of("constructors", tied=TIED))
    first, last = source.build(0), source.build(4)
    assert torch.equal(first.get_parameter("weight"), last.get_parameter("out.weight"))
    assert last.get_parameter("out.weight") is not first.get_parameter("weight")
    assert "tie out.weight=0.weight" in source.outlines()[4].text


# ---- what goes over the wire ----------------------------------------------------------------------------------------


def test_layers_add_to_their_own_buckets_and_to_those_of_earlier_layers() -> None:
    numbers = [range(3), range(3, 4), range(4, 6)]
    own = [tuple(map(Addend, each)) for each in numbers]
    assert addends(numbers, ()) == tuple(own)
    ties = (Tie(0, 1, places=(1,)), Tie(0, 2, places=(0, 1)), Tie(1, 2))
    assert addends(numbers, ties) == (
        own[0],
        (*own[1], Addend(1, 1)),
        (*own[2], Addend(0, 2), Addend(1, 2), Addend(3, 2)),
    )


def wide() -> list[Any]:
    """Its table is cut into buckets, with a vector after it in the last one."""
    made: list[Any] = [nn.Embedding(LEAST // WIDTH + NORM_CHUNK // 16, 2 * WIDTH), nn.Linear(2 * WIDTH, TOKENS)]
    made[0].scale = nn.Parameter(torch.ones(5))
    made[1].table = made[0].weight
    return made


def test_a_tied_parameter_is_cut_as_in_its_first_layer() -> None:
    """What one layer adds to the buckets of another comes back under its own names, whole."""
    job = job_of("wide", 1)
    source = ModelSource(job.model_copy(update={"pipeline": job.pipeline.model_copy(update={"pipelines": 4})}))
    assert source.ties == (Tie(0, 1, (("table", "weight"),), (0, 1)),)
    first, last = (HeldLayer.build(source, index, CPU) for index in range(2))
    layout = addends([range(2), range(2, 3)], source.ties)
    for layer, own in zip((first, last), layout, strict=True):
        layer.cut.arrange(own)
    names = ("table", "weight", "bias")
    given = {name: torch.randn_like(last.module.get_parameter(name)) for name in names}
    value = Value(tuple((f"grad.{name}", tensor) for name, tensor in given.items()), tallies=(1.0, 2.0))
    pieces = dict(last.cut.pieces(value))
    assert list(pieces) == [Addend(2), Addend(0, 1), Addend(1, 1)]
    assert [name for name, _ in pieces[Addend(2)].tensors] == ["grad.weight", "grad.bias"]
    assert pieces[Addend(2)].tallies == (1.0, 2.0)
    whole = {"grad.weight": torch.zeros_like(given["table"]), "grad.scale": torch.ones(5)}
    given_first = dict(first.cut.pieces(Value(tuple(whole.items()))))
    sums = {2: pieces[Addend(2)]}
    for bucket in range(2):
        uses = [{Block(0, 4): given_first[Addend(bucket)]}, {Block(0, 4): pieces[Addend(bucket, 1)]}]
        sums[bucket] = first.sum_up(uses, 4, True)
    joined = dict(last.cut.joined([sums[x.bucket] for x in layout[1]]).tensors)
    assert {*joined} == {f"grad.{name}" for name in names}
    for name, tensor in given.items():
        assert torch.equal(joined[f"grad.{name}"].view_as(tensor), tensor)
    assert torch.equal(dict(first.cut.joined([sums[0], sums[1]]).tensors)["grad.scale"], torch.ones(5))


def chain() -> list[nn.Module]:
    """The middle layer is the later user of one parameter, and the first of another: it is cut without the former."""
    made: list[Any] = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)]
    p, q = (nn.Parameter(torch.zeros(LEAST)) for _ in range(2))
    made[0].p, made[1].p, made[1].q, made[2].q = p, p, q, q
    return made


def test_a_layer_between_two_ties_is_cut_alike_by_all() -> None:
    """Two buckets of it began elsewhere for those who add to them: the sum raised, on every node."""
    job = job_of("chain", 1)
    source = ModelSource(job.model_copy(update={"pipeline": job.pipeline.model_copy(update={"pipelines": 2})}))
    assert source.ties == (Tie(0, 1, (("p", "p"),), (0,)), Tie(1, 2, (("q", "q"),), (0, 1)))
    layers = [HeldLayer.build(source, index, CPU) for index in range(3)]
    layout = addends(numbered([1, 2, 1]), source.ties)
    for layer, own in zip(layers, layout, strict=True):
        layer.cut.arrange(own)
    q = Value((("grad.q", torch.arange(LEAST, dtype=torch.float32)),))
    mine, theirs = dict(layers[1].cut.pieces(q)), dict(layers[2].cut.pieces(q))
    for bucket in (1, 2):
        one, other = (dict(x.tensors)["grad.q"] for x in (mine[Addend(bucket)], theirs[Addend(bucket, 2)]))
        assert torch.equal(one, other)


# ---- mistakes -------------------------------------------------------------------------------------------------------


def labelled_twice() -> list[Any]:
    """One label for two parameters of one layer."""
    first, second, *others = constructors()
    names = {"0.weight": "table", "2.weight": "table"}
    return [tied(first, {"weight": "table"}), tied(second, names), *others]


def shares_a_view() -> list[nn.Module]:
    made = [make() for make in constructors()]
    made[4].out.weight = nn.Parameter(made[0].weight.detach()[:, :])
    return made


def turned() -> list[Any]:
    """The same shape, laid out otherwise: what goes by memory would step the two apart."""

    class Turned(Head):
        def __init__(self) -> None:
            super().__init__()
            self.out.weight = nn.Parameter(torch.randn(WIDTH, TOKENS).t())

    return [embedding, block, block, block, Turned]


def aliased() -> list[Any]:
    class Aliased(Head):
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.out.weight

    return [embedding, block, block, block, Aliased]


def from_numpy() -> list[Any]:
    """A constructor that makes values also where none are asked for."""

    class Made(Head):
        def __init__(self) -> None:
            super().__init__()
            self.out.weight = nn.Parameter(torch.from_numpy(np.ones((TOKENS, WIDTH), np.float32)))

    return [embedding, block, block, block, Made]


def test_a_tied_parameter_may_be_made_with_values_where_a_sketch_has_none() -> None:
    job = job_of("from_numpy", tied=TIED)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize(
    ("layers", "tied", "said"),
    [
        ("constructors", [["0.weight", "4.out.wait"]], "layer 4 has no parameter 'out.wait'; did you mean out.weight?"),
        ("constructors", [["0.weight", "9.out.weight"]], "'9.out.weight' is of layer 9, and the last one is 4"),
        ("constructors", [["0.weight", "out.weight"]], "'out.weight' names no parameter of a layer"),
        ("constructors", [["0.weight"]], "0.weight are not parameters of two or more layers, one of each"),
        (
            "constructors",
            [["1.0.weight", "1.0.bias"]],
            "1.0.bias = 1.0.weight are not parameters of two or more",
        ),
        ("labelled_twice", [], "0.weight = 1.0.weight = 1.2.weight are not parameters of two or more layers"),
        ("constructors", [["0.weight", "1.0.weight"]], "0.weight and 1.0.weight differ in shape: (11, 8) and (8, 8)"),
        ("constructors", [*TIED, ["0.weight", "1.0.weight"]], "0.weight is tied twice: 0.weight = 1.0.weight, and"),
        ("turned", TIED, "0.weight and 4.out.weight differ in their strides: (8, 1) and (1, 11)"),
        ("aliased", TIED, "layer 4 has no parameter 'out.weight'; call it weight"),
        ("shares_a_view", [], "layers 0 and 4 share memory: weight and out.weight"),
    ],
)
def test_what_cannot_be_one_is_named(layers: str, tied: list[list[str]], said: str) -> None:
    with pytest.raises(JobError) as error:
        check_job(job_of(layers, tied=tied))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


class Hidden(nn.Module):
    """It refers to the embedding, and does not have it: on a node it is a copy that nobody trains."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.table = [embedding]

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, WIDTH]
        return x @ self.table[0].weight.T


def hides() -> list[nn.Module]:
    first = nn.Embedding(TOKENS, WIDTH)
    return [first, block(), Hidden(first)]


def test_a_parameter_that_a_layer_uses_and_does_not_have_is_refused() -> None:
    with pytest.raises(JobError, match=r"layer 2 \(Hidden\) uses a tensor of shape \[11, 8\] that requires a gradient"):
        check_job(job_of("hides"))


kept = nn.Parameter(torch.randn(TOKENS, WIDTH))


def keeps(kind: Any, at: str) -> nn.Module:
    module: nn.Module = kind()
    owner, _, name = at.rpartition(".")
    setattr(module.get_submodule(owner), name, kept)
    return module


def shared_by_constructors() -> list[Any]:
    return [partial(keeps, embedding, "weight"), block, block, block, partial(keeps, Head, "out.weight")]


def test_constructors_that_share_a_parameter_are_refused_with_the_line_to_write() -> None:
    with pytest.raises(JobError, match=r'name it in each: \[model\] tied = \[\["0\.weight", "LAYER\.NAME"\]\]'):
        check_job(job_of("shared_by_constructors"))

"""Layers that take and return several tensors, cut anywhere, give the bits of a loop that knows nothing of cuts."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from culm.commands.profile import measure
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from tests.unit.exactness import ADAMW, gives_the_plain_loops_bits, make_job

HERE = "tests.unit.test_boundaries"
WIDTH = 8
Words = dict[str, torch.Tensor]


class Lines(Dataset[tuple[Words, Words]]):
    """Input and target are dicts: words and which of them count, a label and its weight."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Words, Words]:
        words = (torch.arange(6) * (index + 3)) % 11
        target = {"label": torch.tensor(index % 4), "weight": torch.tensor(1.0 + index % 3)}
        return {"words": words, "mask": torch.arange(6) < 2 + index % 5}, target


@dataclass
class State:
    """What goes from layer to layer. ``skip``: the very tensor that ``hidden`` was once."""

    hidden: torch.Tensor  # [B, T, WIDTH]
    mask: torch.Tensor  # [B, T], of truth values
    bias: torch.Tensor  # [B, T], floating point, of no parameter
    skip: torch.Tensor | None = None


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, WIDTH)

    def forward(self, x: Words) -> State:
        return State(self.table(x["words"]), x["mask"], (~x["mask"]).float() * -1e9)


class Attend(nn.Module):
    """Uses all that it is given, more than once, and hands on what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: State) -> State:
        h = x.hidden if x.skip is None else x.hidden + torch.tanh(x.skip) * x.skip
        weights = torch.softmax(self.query(h) @ self.key(h).mT + x.bias[:, None, :], -1)
        return State(h + self.drop(weights @ self.value(h)), x.mask, x.bias, h if x.skip is None else x.skip)


class Both(nn.Module):
    """Hands on one tensor at two places, and two views of one."""

    def forward(self, x: State) -> tuple[torch.Tensor, list[Any]]:
        left, right = x.hidden.chunk(2, -1)
        return x.hidden, [x.hidden, (left, right), {"mask": x.mask, "bias": x.bias, "skip": x.skip}, None, "both"]


class Merge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: tuple[torch.Tensor, list[Any]]) -> State:
        one, (other, (left, right), rest, nothing, word) = x
        assert (nothing, word) == (None, "both")
        assert one is other
        y = self.mix(one) * other + torch.cat([right, left], -1)
        return State(y, rest["mask"], rest["bias"], rest["skip"])


class Lost(nn.Module):
    """Nobody after it uses ``skip``, though it requires a gradient."""

    def forward(self, x: State) -> State:
        return State(x.hidden, x.mask, x.bias, None if x.skip is None else x.skip.detach())


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, x: State) -> dict[str, torch.Tensor]:
        kept = (x.hidden * x.mask[..., None]).sum(1) / x.mask.sum(1, keepdim=True)
        return {"logits": self.out(kept), "length": x.mask.sum(1)}


class Writes(nn.Module):
    def forward(self, x: Any) -> Any:
        x[1][1][0].mul_(2.0)
        return x


class Odd(nn.Module):
    def forward(self, x: State) -> Any:
        return {x.hidden}


def loss(output: dict[str, torch.Tensor], target: Words) -> torch.Tensor:
    each = nn.functional.cross_entropy(output["logits"], target["label"], reduction="none")
    return (each * target["weight"] / output["length"]).mean()


def layers(count: int) -> list[Any]:
    return [Embed, *[Attend] * count, Both, Merge, Attend, Lost, Attend, Head]


def overlapping(count: int) -> list[Any]:
    return [Embed, *[Attend] * count, Both, Writes, Merge, Head]


def odd(count: int) -> list[Any]:
    return [Embed, *[Attend] * count, Odd, Head]


def hidden_behind(count: int) -> list[Any]:
    """Ready-made modules in place of constructors."""
    return [layer() for layer in layers(count)]


class Positions(nn.Module):
    """One of what it gives depends on its own parameters alone, and one parameter is in both."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.places = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: State) -> State:
        return State(self.mix(x.hidden), x.mask, x.bias, torch.tanh(self.mix(self.places)))


class Place(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: State) -> State:
        assert x.skip is not None
        return State(self.mix(x.hidden + x.skip), x.mask, x.bias, x.skip)


class Skips(nn.Module):
    """Hands on the very tensor that its own product has kept for the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: State) -> State:
        return State(self.mix(x.hidden), x.mask, x.bias, x.hidden)


class Grows(nn.Module):
    """Changes the containers that it is given, and writes into a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: State) -> State:
        x.hidden = torch.tanh(self.mix(x.hidden))
        x.bias.mul_(1.5)
        return x


class HandsParameter(Positions):
    def forward(self, x: State) -> State:
        return State(self.mix(x.hidden), x.mask, x.bias, self.places)


def with_positions(count: int) -> list[Any]:
    return [Embed, Attend, Positions, Place, Skips, *[Place] * count, Skips, Attend, Head]


def that_grow(count: int) -> list[Any]:
    return [Embed, Attend, *[Grows] * count, Attend, Head]


def handing_parameters(count: int) -> list[Any]:
    return [Embed, HandsParameter, *[Place] * count, Head]


def job_of(stages: int, layers: str = "layers", splits: bool = False, pipelines: int = 1, **train: Any) -> Job:
    job = make_job(stages, 3, ADAMW, True, count=2)
    model = job.model.model_copy(update={"layers": f"{HERE}:{layers}"})
    data = job.data.model_copy(update={"dataset": f"{HERE}:Lines", "args": {}})
    more = {"pipelines": pipelines} | ({"schedule": "zb-h1"} if splits else {})
    of_train = job.train.model_copy(update={"loss": f"{HERE}:loss", **train})
    return job.model_copy(
        update={"model": model, "data": data, "pipeline": job.pipeline.model_copy(update=more), "train": of_train}
    )


def test_each_layer_is_measured_whatever_it_hands_on() -> None:
    """culm profile, and with it culm plan and culm replay, ended in a traceback: a dict has no numel."""
    found = measure(job_of(1), 1)
    assert len(found.layers) == len(layers(2))
    assert all(layer.forward > 0.0 and layer.activation_bytes > 0 for layer in found.layers)
    embed, attend = found.layers[:2]
    assert attend.activation_bytes > embed.activation_bytes, "hidden, mask, bias, and skip as well"


@pytest.mark.parametrize("splits", [False, True], ids=["1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", range(1, 10))
def test_every_cut_gives_the_plain_loops_bits(stages: int, splits: bool) -> None:
    job = job_of(stages, splits=splits)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize(
    "train", [{"precision": "bf16-mixed"}, {"activation_checkpointing": True}], ids=["bf16", "again"]
)
@pytest.mark.parametrize("stages", [1, 3, 9])
def test_it_goes_with_the_other_ways_of_a_forward(stages: int, train: dict[str, Any]) -> None:
    job = job_of(stages, "hidden_behind", **train)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
def test_what_is_written_in_place_may_not_lie_in_another_tensor(again: bool) -> None:
    """Cut off from the layer before, a stage has two copies; and so has a forward that is to be run again."""
    with pytest.raises(JobError, match=r"layer 4 \(Writes\) writes into its input, two tensors of which share memory"):
        check_job(job_of(2, "overlapping", activation_checkpointing=again))


def test_what_no_other_node_can_be_given_is_named() -> None:
    with pytest.raises(JobError, match=r"layer 3 \(Odd\) returned a set, not a tensor"):
        check_job(job_of(2, "odd"))
    with pytest.raises(JobError, match=r"layer 3 \(Odd\) returned a set, not a tensor"):
        gives_the_plain_loops_bits(job_of(2, "odd"))


def as_a_set(samples: Any) -> Any:
    return {"words": {1, 2}}, torch.zeros(2)


def test_samples_that_are_no_pytree_are_named() -> None:
    job = job_of(2)
    data = job.data.model_copy(update={"collate": f"{HERE}:as_a_set"})
    with pytest.raises(JobError, match=r"input is or holds a set, not a tensor"):
        check_job(job.model_copy(update={"data": data}))


@pytest.mark.parametrize("splits", [False, True], ids=["1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 9])
def test_outputs_of_parameters_alone_and_inputs_handed_on_are_trained(stages: int, splits: bool) -> None:
    """Under zb-h1 the first kind was not, and the second one ended the node."""
    job = job_of(stages, "with_positions", splits)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize("stages", [1, 2, 6])
def test_containers_and_tensors_that_a_layer_changes_are_its_own(stages: int, again: bool) -> None:
    """A forward that is run again found what the first one had left there."""
    job = job_of(stages, "that_grow", activation_checkpointing=again)
    check_job(job)
    gives_the_plain_loops_bits(job)


def test_a_parameter_that_is_handed_on_is_refused_where_its_copy_would_depend_on_the_cut() -> None:
    check_job(job_of(3, "handing_parameters"))
    gives_the_plain_loops_bits(job_of(3, "handing_parameters"))
    with pytest.raises(JobError, match=r"layer 1 \(HandsParameter\) hands on its parameter places"):
        check_job(job_of(3, "handing_parameters", precision="bf16-mixed"))

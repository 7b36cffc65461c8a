"""What layers are set to beside their tensors: another dropout rate on one node alone is refused (rule 23)."""

import itertools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from culm.coordinator.agreement import Agreement, joined, refusal
from culm.pipeline.identity import Identity
from culm.pipeline.identity_parts import with_what_follows
from culm.pipeline.user_code import again
from culm.pipeline.user_code.configuration import MOST_LAYERS, MOST_VALUES, configuration_of, configurations
from culm.pipeline.user_code.model import ModelSource
from tests.hostile.job_files import ENVIRONMENT, ROOT, job_text, make_job


@dataclass
class Settings:
    rate: float = 0.1
    names: set[str] = field(default_factory=lambda: {"one", "two", "three"})


class Own(nn.Module):
    """A user's layer. x: [B, 8]."""

    def __init__(self, rate: float = 0.1, **attributes: Any) -> None:
        super().__init__()
        self.settings = Settings(rate)
        self.inner = nn.Linear(8, 8)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = nn.functional.dropout(self.inner(x), self.settings.rate)
        return y


class Config:
    """As of a library of models: plain data, classes and words."""

    def __init__(self, **values: Any) -> None:
        self.act, self.norm, self.folder = nn.functional.gelu, nn.LayerNorm, Path("/home")
        self.name_or_path = f"/home/{id(self)}"
        self.rates = {"first": 0.1}
        vars(self).update(values)


class Logger(Config):
    """Holds a lock, and what it has counted on this machine."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.lock = threading.Lock()


class Lazy(Mapping[str, Any]):
    """As a file that is read by keys."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError("nobody reads it")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("nobody reads it")

    def __len__(self) -> int:
        raise AssertionError("nobody reads it")


def one(module: nn.Module) -> str:
    return configuration_of(module, module)


PAIRS: dict[str, tuple[nn.Module, nn.Module]] = {
    "a dropout rate": (nn.Dropout(0.1), nn.Dropout(0.2)),
    "an epsilon": (nn.LayerNorm(8), nn.LayerNorm(8, eps=1e-6)),
    "a mode": (nn.GELU(), nn.GELU("tanh")),
    "deep within": (nn.Sequential(nn.Sequential(nn.Dropout(0.1))), nn.Sequential(nn.Sequential(nn.Dropout(0.2)))),
    "two that changed places": (
        nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.2)),
        nn.Sequential(nn.Dropout(0.2), nn.Dropout(0.1)),
    ),
    "a dataclass": (Own(0.1), Own(0.2)),
    "a dictionary": (Own(rates={"first": 0.1}), Own(rates={"first": 0.2})),
    "a field of a namespace": (Own(config=SimpleNamespace(rate=0.1)), Own(config=SimpleNamespace(rate=0.2))),
    "a field of a configuration": (Own(config=Config(rate=0.1)), Own(config=Config(rate=0.2))),
    "a configuration in a configuration": (
        Own(config=Config(text=Config(rate=0.1))),
        Own(config=Config(text=Config(rate=0.2))),
    ),
    "a number of numpy's": (Own(scale=np.sqrt(2.0)), Own(scale=np.sqrt(3.0))),
    "an array": (Own(table=np.arange(3)), Own(table=np.arange(3)[::-1])),
    "a tensor": (Own(slopes=torch.tensor([0.5, 0.25])), Own(slopes=torch.tensor([0.5, 0.125]))),
    "a tensor's dtype": (Own(mask=torch.ones(2)), Own(mask=torch.ones(2, dtype=torch.bool))),
    "another class": (nn.ReLU(), nn.SiLU()),
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_changes_the_bits_tells(what: str) -> None:
    first, second = PAIRS[what]
    assert one(first) != one(second)
    assert one(first) == one(first)


SAME: dict[str, tuple[nn.Module, nn.Module]] = {
    "a path": (Own(cache="/home/one"), Own(cache="/home/two")),
    "an address": (Own(mine=id(nn.Module)), Own(mine=id(nn.Linear))),
    "a time": (Own(made=1_700_000_000.5), Own(made=1_700_000_900.25)),
    "an object that is no configuration": (Own(log=Logger(lines=1)), Own(log=Logger(lines=2))),
    "one of Python's": (Own(log=logging.getLogger("a")), Own(log=logging.getLogger())),
    "a mapping that is no dictionary": (Own(file=Lazy()), Own(file=Lazy())),
    "a table of words": (
        Own(words={str(i): i for i in range(MOST_VALUES)}),
        Own(words={str(i): i + 1 for i in range(MOST_VALUES)}),
    ),
    "a very large number": (Own(mask=10**400), Own(mask=10**401)),
    "an object": (Own(thing=object()), Own(thing=object())),
}


@pytest.mark.parametrize("what", SAME)
def test_what_changes_no_bit_does_not_tell(what: str) -> None:
    first, second = SAME[what]
    assert one(first) == one(second)


def test_a_running_number_does_not_tell() -> None:
    numbers = itertools.count()
    layers = [Own(number=next(numbers)) for _ in range(4)]
    assert configuration_of(layers[0], layers[1]) == configuration_of(layers[2], layers[3])


def test_data_that_holds_itself_comes_to_an_end() -> None:
    loop: list[Any] = [0.1]
    loop.append(loop)
    assert one(Own(loop=loop)) == one(Own(loop=loop))
    tree = Config()
    tree.rates = {str(i): Config(parent=tree) for i in range(100)}  # type: ignore[misc]
    assert one(Own(tree=tree)) == one(Own(tree=tree))


TENSORS = {
    "complex": torch.ones(2, dtype=torch.complex64).conj(),
    "expanded": torch.ones(()).expand(2, 2),
    "empty": torch.ones(0),
    "of one byte": torch.ones(2).to(torch.float8_e5m2),
    "without values": torch.ones(2, device="meta"),
    "sparse": torch.eye(2).to_sparse(),
    "computed": nn.Parameter(torch.ones(2)) * 2,
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_of_any_kind_may_be_an_attribute(kind: str) -> None:
    assert one(Own(table=TENSORS[kind])) == one(Own(table=TENSORS[kind]))


CALLS = itertools.count(1)
NUMBERS: Iterator[float] = itertools.count(0.5)


def model(fails: bool = False, rate: float = 0.1, width: int = 8) -> list[nn.Module]:
    """Ready-made layers that hold a time, a memory that nobody has written, a rate, and a number to add to."""
    if next(CALLS) % 2 == 0 and fails:
        raise RuntimeError("this can be called only once")
    return [Own(rate, born=next(NUMBERS), scratch=torch.empty(64), heads=2), nn.Linear(8, width), nn.Dropout(rate)]


def configuration_told(args: str = "") -> list[str]:
    source = ModelSource(make_job(stages=1, layers=f"{__name__}:model", args=args))
    return source.identity().parts["configuration"].split()


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_what_differs_between_two_calls_for_ready_made_layers_does_not_tell(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(again, "SMALL", 0)
    first, second, other = configuration_told(), configuration_told(), configuration_told("rate = 0.2")
    assert first == second
    assert [a != b for a, b in zip(first, other, strict=True)] == [True, False, True]


def test_ready_made_layers_that_are_made_only_once_tell_what_is_exact() -> None:
    first, other = configuration_told("fails = true"), configuration_told("fails = true, rate = 0.2")
    assert [a != b for a, b in zip(first, other, strict=True)] == [False, False, True]


def test_a_model_of_many_layers_stays_short() -> None:
    assert len(configurations(["01234567"] * MOST_LAYERS)) < 4096
    assert len(configurations(["01234567"] * 10 * MOST_LAYERS)) == 64


def test_a_node_that_differs_is_refused_with_the_layer() -> None:
    first = Identity({"configuration": "11111111 22222222 33333333"})
    other = Identity({"configuration": "11111111 22222222 44444444"})
    agreed = joined(Agreement(), first, same_hardware=True)
    assert refusal(agreed, "n1", other) == (
        "layer 2 is set otherwise on n1 than on nodes before it, as by a dropout rate: "
        "let its constructor go by the job's arguments alone, not by the machine or its environment"
    )
    assert refusal(agreed, "n1", first) == ""
    assert refusal(agreed, "n1", Identity({"code": "c"})) == "", "a node of an older version does not tell"
    resumed = Agreement(checkpoint=first)
    assert refusal(resumed, "n1", other).endswith("or let it differ with --allow configuration")
    assert refusal(Agreement(checkpoint=first.without(with_what_follows({"model"}))), "n1", other) == ""
    assert "layer 2" in refusal(Agreement(checkpoint=first.without(with_what_follows({"train"}))), "n1", other)


def test_machines_that_may_differ_may_set_layers_otherwise() -> None:
    """As by ``torch.cuda.get_device_capability()``, also where an older run or its checkpoint has told it."""
    first = Identity({"code": "c", "configuration": "11111111", "hardware": "x", "samples": "1"})
    other = Identity({"code": "c", "configuration": "22222222", "hardware": "y", "samples": "2"})
    agreed = joined(Agreement(), first, same_hardware=False)
    assert refusal(agreed, "n1", other) == ""
    assert refusal(Agreement(nodes=first, checkpoint=first), "n1", other.compared(same_hardware=False)) == ""
    assert "other code" in refusal(agreed, "n1", Identity({"code": "d"}).compared(same_hardware=False))
    assert other.compared(same_hardware=True) == other


def test_parts_that_both_tell_have_to_agree() -> None:
    older, newer = Identity({"code": "c"}), Identity({"code": "c", "configuration": "1"})
    assert older.agrees(newer)
    assert newer.agrees(older)
    assert not older.agrees(Identity({"code": "d", "configuration": "1"}))


# Each of these nodes has a word in its environment, and hashes of its own for words.
MODULE = """
import os
from torch import nn
from tests.unit.test_configuration import Own
def first():
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(float(os.environ["RATE"])))
def layers(**names):
    return [Own, first, nn.Linear(8, 4)]
"""
TELL = """
import os
import sys
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.job import load_job
for rate in sys.argv[2:]:
    os.environ["RATE"] = rate
    print(ModelSource(load_job(sys.argv[1])).identity().parts)
"""


def test_nodes_tell_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "their_layers.py").write_text(MODULE)
    path = tmp_path / "job.toml"
    path.write_text(job_text(stages=1, layers="their_layers:layers"))

    def parts(seed: str, *rates: str) -> list[dict[str, str]]:
        environment = {**ENVIRONMENT, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        words = [sys.executable, "-c", TELL, str(path), *rates]
        said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
        return [eval(line) for line in said.splitlines()]

    (first, other), (same,) = parts("1", "0.1", "0.2"), parts("2", "0.1")
    assert first == same
    assert {part for part in first if first[part] != other[part]} == {"configuration"}
    differs = [a != b for a, b in zip(first["configuration"].split(), other["configuration"].split(), strict=True)]
    assert differs == [False, True, False]

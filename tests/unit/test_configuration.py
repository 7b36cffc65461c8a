"""What layers are set to beside their tensors: another dropout rate on one node alone is refused (rule 23)."""

import itertools
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from culm.coordinator.agreement import Agreement, joined, refusal
from culm.pipeline.identity import Identity
from culm.pipeline.identity_parts import with_what_follows
from culm.pipeline.user_code.configuration import MOST_LAYERS, configuration_of, configurations
from tests.hostile.job_files import ENVIRONMENT, ROOT, job_text


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
import sys
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.job import load_job
print(ModelSource(load_job(sys.argv[1])).identity().parts)
"""


def test_nodes_tell_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "their_layers.py").write_text(MODULE)
    path = tmp_path / "job.toml"
    path.write_text(job_text(stages=1, layers="their_layers:layers"))

    def parts(seed: str, rate: str) -> dict[str, str]:
        environment = {**ENVIRONMENT, "PYTHONHASHSEED": seed, "RATE": rate}
        environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
        words = [sys.executable, "-c", TELL, str(path)]
        said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
        found: dict[str, str] = eval(said)
        return found

    first, same, other = parts("1", "0.1"), parts("2", "0.1"), parts("1", "0.2")
    assert first == same
    assert {part for part in first if first[part] != other[part]} == {"configuration"}
    differs = [a != b for a, b in zip(first["configuration"].split(), other["configuration"].split(), strict=True)]
    assert differs == [False, True, False]

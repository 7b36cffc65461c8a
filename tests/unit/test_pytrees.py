"""Pytrees as tensors and a structure, and what a structure from elsewhere may not say."""

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch

from culm.pipeline.tensors.pytrees import (
    MOST_CHARACTERS,
    MOST_LEVELS,
    MOST_TENSORS,
    NotAPytree,
    as_text,
    mapped,
    of_text,
    parts_of,
    rebuilt,
    refuse_unsendable,
    tensors_in,
)

HERE = "tests.unit.test_pytrees"


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Output:
    hidden: torch.Tensor
    mask: torch.Tensor | None = None
    depth: int = 0


@dataclass
class Counting:
    """Its constructor does what a second one would do once more."""

    value: torch.Tensor
    count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.value = self.value * 2


class Next(NamedTuple("Next", [("place", int)])):
    def __new__(cls, place: int) -> "Next":
        return tuple.__new__(cls, (place + 1,))


A, B = torch.arange(3.0), torch.arange(4)


@pytest.mark.parametrize(
    ("tree", "structure"),
    [
        (A, 0),
        ((A, B), ["tuple", 0, 1]),
        ([A, [B]], ["list", 0, ["list", 1]]),
        ({"x": A, 3: None}, ["dict", ["x", 3], 0, None]),
        (OrderedDict(b=A, a=B), ["ordered", ["b", "a"], 0, 1]),
        (Pair(A, (B, A)), ["named", f"{HERE}:Pair", ["left", "right"], 0, ["tuple", 1, 0]]),
        (Output(A, depth=2), ["dataclass", f"{HERE}:Output", ["hidden", "mask", "depth"], 0, None, ["is", 2]]),
        ((A, True, 0.1, "relu"), ["tuple", 0, ["is", True], ["is", 0.1], ["is", "relu"]]),
        ((), ["tuple"]),
    ],
    ids=["tensor", "tuple", "list", "dict", "ordered", "named", "dataclass", "plain", "empty"],
)
def test_a_pytree_comes_back_as_it_was(tree: Any, structure: Any) -> None:
    tensors, found = parts_of(tree)
    assert found == structure
    again = rebuilt(of_text(as_text(found), len(tensors)), tensors)
    assert type(again) is type(tree)
    assert parts_of(again)[1] == structure
    assert all(one is other for one, other in zip(tensors_in(again), tensors_in(tree), strict=True))


def test_a_tensor_that_stands_twice_is_changed_once() -> None:
    calls: list[torch.Tensor] = []

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(tensor)
        return tensor * 2

    one, (other, _) = mapped(twice, (A, [A, B]))
    assert one is other
    assert len(calls) == 2


def test_a_tensor_without_a_container_has_no_text() -> None:
    assert as_text(parts_of(A)[1]) == ""
    assert rebuilt(of_text("", 1), [A]) is A


@pytest.mark.parametrize("odd", [{1}, object(), (A, {"x": b"bytes"}), {(1, 2): A}, {None: A}, torch.float32])
def test_what_is_none_is_named(odd: Any) -> None:
    with pytest.raises(NotAPytree, match=r"set|object|bytes|the key|dtype"):
        parts_of(odd)


def test_a_class_that_its_module_does_not_have_is_named() -> None:
    @dataclass
    class Hidden:
        x: torch.Tensor

    with pytest.raises(NotAPytree, match=r"Hidden, which tests\.unit\.test_pytrees does not have"):
        parts_of(Hidden(A))


def test_what_no_other_node_would_take_is_named_where_it_is_made() -> None:
    with pytest.raises(NotAPytree, match=f"a container of {MOST_TENSORS + 1} tensors"):
        parts_of([torch.zeros(1) for _ in range(MOST_TENSORS + 1)])
    with pytest.raises(NotAPytree, match=r"a container of \d+ characters"):
        as_text(parts_of((A, "x" * MOST_CHARACTERS))[1])
    refuse_unsendable((A, "x" * (MOST_CHARACTERS // 2)))
    with pytest.raises(NotAPytree, match=r"a container of \d+ characters"):
        refuse_unsendable((A, "x" * (MOST_CHARACTERS // 2)), (A, "x" * (MOST_CHARACTERS // 2)))


@pytest.mark.parametrize("plain", [A, torch.nn.Parameter(A), torch.nn.Buffer(A), A.to("meta")])
def test_only_a_class_of_its_own_is_told(plain: torch.Tensor) -> None:
    class Tagged(torch.Tensor):
        pass

    refuse_unsendable({"x": plain, "depth": 3})
    with pytest.raises(NotAPytree, match="a Tagged"):
        refuse_unsendable({"x": plain, "y": B.as_subclass(Tagged)})


def test_containers_end_somewhere() -> None:
    tree: Any = A
    for _ in range(MOST_LEVELS + 1):
        tree = [tree]
    with pytest.raises(NotAPytree, match="within one another"):
        parts_of(tree)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("{", 1),
        ("1", 1),
        ("-1", 1),
        ("true", 1),
        ('"word"', 1),
        ("[]", 0),
        ('["set",0]', 1),
        ('["tuple",0]', 2),
        ('["tuple",0,1]', 1),
        ('["dict",["a"],0,1]', 2),
        ('["dict",["a","a"],0,1]', 2),
        ('["dict",[["a"]],0]', 1),
        ('["dict"]', 0),
        ('["named","a:B",["x"]]', 0),
        ('["named",3,["x"],0]', 1),
        ('["dataclass"]', 0),
        ('["is",[0]]', 0),
        ('["is"]', 0),
        ('["tuple",0.0]', 1),
        ("[" * 100_000, 0),
        ('["list",' * (MOST_LEVELS + 2) + "0" + "]" * (MOST_LEVELS + 2), 1),
        (json.dumps(["tuple", ["is", "x" * MOST_CHARACTERS]]), 0),
        (json.dumps(["tuple", *range(MOST_TENSORS + 1)]), MOST_TENSORS + 1),
    ],
)
def test_what_no_structure_says_is_refused(text: str, count: int) -> None:
    with pytest.raises(ValueError, match="structure"):
        of_text(text, count)


@pytest.mark.parametrize(
    "structure",
    [
        ["dataclass", "subprocess:Popen", ["args"], ["is", "true"]],
        ["named", "builtins:tuple", ["x"], 0],
        ["named", f"{HERE}:Output", ["hidden"], 0],
        ["dataclass", f"{HERE}:Nowhere", [], 0],
        ["dataclass", "no.such.module:Thing", ["x"], 0],
        ["dataclass", f"{HERE}:Output", ["other"], 0],
        ["dataclass", f"{HERE}:Counting", ["value"], 0],
        ["named", f"{HERE}:Pair", ["left"], 0],
    ],
)
def test_only_containers_that_this_process_has_are_made(structure: Any) -> None:
    with pytest.raises(NotAPytree):
        rebuilt(structure, [torch.zeros(2, 2)])


def test_no_constructor_runs_once_more() -> None:
    """It would, as often as the model is cut."""
    first = Counting(A)
    first.count = 5
    again, place = mapped(torch.clone, (first, Next(3)))
    assert (again.count, place.place) == (5, 4)
    assert torch.equal(again.value, A * 2)


def test_what_lies_beside_the_fields_is_named() -> None:
    beside = Output(A)
    beside.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(NotAPytree, match="a Output with extra, which is none of its fields"):
        parts_of(beside)

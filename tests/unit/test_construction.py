"""How classes are made: by keyword where they have many fields, and never from a splatted tuple."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("pipeline", "coordinator", "stage_server", "simulator", "ui", "culm", "benchmarks")
MANY = 5  # fields that can be told apart by their place
BY_PLACE = {"pipeline/keys.py:Key"}  # a tuple on the data plane; the order is that of the wire


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.is_symlink() and "_pb2" not in path.name:
                yield path


def fields(found: ast.ClassDef) -> int:
    named = [each for each in found.body if isinstance(each, ast.AnnAssign)]
    return sum("ClassVar" not in ast.unparse(each.annotation) for each in named)


def by_place(tree: ast.Module) -> Iterator[str]:
    """The classes of many fields that are made by place."""
    for found in ast.walk(tree):
        if isinstance(found, ast.ClassDef) and fields(found) > MANY:
            made = " ".join(map(ast.unparse, (*found.decorator_list, *found.bases)))
            if "NamedTuple" in made or ("dataclass" in made and "kw_only=True" not in made):
                yield found.name


def splatted(tree: ast.Module, ours: set[str]) -> Iterator[str]:
    """The classes of ours that are made from a splatted tuple: which of its values is which field does not show."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Call) and any(isinstance(value, ast.Starred) for value in found.args):
            name = ast.unparse(found.func).rpartition(".")[2]
            if name in ours:
                yield name


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module, by its path from the root."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in modules()}


def test_no_class_is_made_from_a_splatted_tuple(trees: dict[str, ast.Module]) -> None:
    ours = {each.name for tree in trees.values() for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}
    assert len(ours) > 500
    assert [f"{path}:{name}" for path, tree in trees.items() for name in splatted(tree, ours)] == []


def test_classes_of_many_fields_are_made_by_keyword(trees: dict[str, ast.Module]) -> None:
    assert {f"{path}:{name}" for path, tree in trees.items() for name in by_place(tree)} == BY_PLACE


def test_it_tells_one_from_the_other() -> None:
    six = "\n".join(f"    x{i}: int" for i in range(6))
    assert list(by_place(ast.parse(f"@dataclass(frozen=True)\nclass A:\n{six}"))) == ["A"]
    assert list(by_place(ast.parse(f"@dataclass(kw_only=True)\nclass A:\n{six}"))) == []
    assert list(by_place(ast.parse(f"class A(NamedTuple):\n{six}"))) == ["A"]
    assert list(splatted(ast.parse("Plan(*order, stages)"), {"Plan"})) == ["Plan"]
    assert list(splatted(ast.parse("print(*order, stages)"), {"Plan"})) == []

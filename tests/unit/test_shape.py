"""The shape of the code: what counts as code, as comment, as an object's attribute, and as crossing rooms."""

import ast

from benchmarks.shape import Size, Text, across, lines, objects

TEXT = '''"""A module."""

import os  # for its own sake

# Why it is so.


class Base:
    def __init__(self) -> None:
        self.one = 1


class Whole(Base):
    """Two lines
    of words."""

    two: int = 2

    def act(self) -> None:
        self.three = os.sep
'''


def test_lines_are_counted_by_what_they_are() -> None:
    assert lines(TEXT) == Text(code=8, comments=2, docstrings=3)


def test_an_object_counts_what_it_inherits() -> None:
    assert objects({"a.py": ast.parse(TEXT)})[0] == Size(attributes=3, methods=2, name="Whole")


def test_imports_within_a_room_do_not_cross() -> None:
    trees = {
        "coordinator/decide.py": ast.parse(
            "from culm.coordinator.state import State\nfrom culm.pipeline.plan import Plan"
        ),
        "coordinator/state.py": ast.parse(""),
        "pipeline/plan.py": ast.parse(""),
    }
    assert across(trees) == {("coordinator", "pipeline"): 1}

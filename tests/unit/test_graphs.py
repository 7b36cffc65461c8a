"""Graphs that need no network, and what makes a graph of them: Python's own library, drawn ones, loops and weights."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from culm.graphs import Graph
from culm.graphs.datasets import blocks, rmat
from culm.graphs.stdlib import Library, calls, words_of
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import job_to_toml, load_job, parse_job, with_values
from culm.pipeline.user_code.check import check_job

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = Path(__file__).parents[2] / "docs" / "graphs.md"

FILES = {
    "alpha/__init__.py": "from .deep import lift\nfrom alpha.base import *\n",
    "alpha/base.py": """
class Base:
    def __init__(self): pass
    def shared(self): pass
def starred(): pass
""",
    "alpha/deep.py": """
from . import base
from .base import Base as Root
import beta.tools as tools
def lift(x):
    return tools.turn(x)
class Leaf(Root):
    def run(self):
        self.shared()
        self.walk()
        return lift(base.starred())
    def walk(self, lift):
        def inner(): return tools
        return lift(inner)
    if True:
        def late(self): return Leaf()
    else:
        def late(self): return None
""",
    "alpha/test/never.py": "def never(): pass\n",
    "beta/tools.py": """
import alpha
from alpha import *
def turn(x):
    return x.walk(alpha.lift)
async def wait(): starred()
def call(x): return x.run().nobody
def alone():
    import gamma
    return gamma.run(base=1)
""",
    "beta/bad.py": "def broken(:\n",
    "gamma.py": "def run(): pass\n",
    "not-a-package/gamma.py": "def run(): pass\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def named(library: Library) -> dict[str, set[str]]:
    """The names of the functions that each one has an edge to."""
    names = [f"{each.module.name}.{each.name}" for each in library.functions]
    found: dict[str, set[str]] = {name: set() for name in names}
    for source, target in library.edges():
        found[names[source]].add(names[target])
    return found


def test_edges_lead_to_what_a_body_names(folder: Path) -> None:
    library = Library(folder, 2)
    assert library.names == ("alpha", "beta"), "the packages with the most functions"
    assert named(library) == {
        "alpha.base.Base.__init__": set(),
        "alpha.base.Base.shared": set(),
        "alpha.base.starred": set(),
        "alpha.deep.lift": {"beta.tools.turn"},
        # Of a base class in another module, of its own class, of its own module, of a module that is imported.
        "alpha.deep.Leaf.run": {
            "alpha.base.Base.shared",
            "alpha.deep.Leaf.walk",
            "alpha.deep.lift",
            "alpha.base.starred",
        },
        "alpha.deep.Leaf.walk": set(),  # its parameter hides the function
        "alpha.deep.Leaf.late": {"alpha.base.Base.__init__"},
        # By the only method of that name, and through the package that imports it.
        "beta.tools.turn": {"alpha.deep.Leaf.walk", "alpha.deep.lift"},
        "beta.tools.wait": {"alpha.base.starred"},  # a star of a star
        "beta.tools.call": {"alpha.deep.Leaf.run"},
        "beta.tools.alone": set(),  # gamma is left out
    }


def test_too_few_packages_are_said(folder: Path) -> None:
    assert Library(folder, 3).names == ("alpha", "beta", "gamma")
    with pytest.raises(JobError, match=r"packages is 4, and .* has 3 packages with functions; give 3 or less"):
        Library(folder, 4)
    with pytest.raises(JobError, match=r"packages is 1 and features is 128; give 2 packages or more"):
        calls(packages=1)


def test_no_feature_has_a_packages_name(tmp_path: Path) -> None:
    """Two bodies that differ in such names alone have the same features."""
    (tmp_path / "alpha.py").write_text("def one(x, alpha): return x.alpha_loop(AlphaError, alpha=x)\n" * 2)
    (tmp_path / "_beta.py").write_text("def two(x): return x(x)\ndef three(x): return x.beta, x._beta, _beta\n")
    one, *_, two, three = Library(tmp_path, 2).features(64)
    assert [row.count_nonzero().item() for row in (one, two, three)] == [1, 1, 1]
    assert one.sum().item() == pytest.approx(1.3863, abs=1e-4), "x stands there three times"


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("_asyncio_loop", {"asyncio", "loop"}),
        ("HTTPError", {"http", "error"}),
        ("emailMessage", {"email", "message"}),
        ("lib2to3", {"lib", "2", "to", "3", "lib2to3"}),
        ("x", {"x"}),
    ],
)
def test_words_of_an_identifier(identifier: str, words: set[str]) -> None:
    assert words <= words_of(identifier)


def test_the_library_of_this_python() -> None:
    graph, again, loops = (calls(packages=3, features=32, edges=edges) for edges in (True, True, False))
    graph.check()
    for name in ("sources", "targets", "weights", "features", "labels", "train"):
        assert torch.equal(getattr(graph, name), getattr(again, name))
    assert len(graph.names) == 3
    assert set(graph.labels.tolist()) == {0, 1, 2}
    assert torch.equal(loops.features, graph.features)
    assert torch.equal(loops.sources, loops.targets)
    away = graph.sources != graph.targets
    inside = graph.labels[graph.sources[away]] == graph.labels[graph.targets[away]]
    assert int(away.sum()) > graph.vertices
    assert inside.float().mean() > 0.6


def test_edges_tell_more_of_a_package_than_identifiers_alone() -> None:
    found = []
    for edges in ("true", "false"):
        changes = ["job.steps=30", "graph.args.packages=4", "graph.args.features=32", f"graph.args.edges={edges}"]
        job = load_job(EXAMPLES / "stdlib_calls.toml", [*changes, "model.args.sizes=[32, 16, 4]"])
        found.append(run_plain(job).metrics[-1]["test_accuracy"])
    assert found[0] > found[1] + 0.05


def test_examples_of_graphs_are_right() -> None:
    for name in ("blocks.toml", "stdlib_calls.toml"):
        job = load_job(EXAMPLES / name)
        assert parse_job(job_to_toml(job)) == job
    check_job(load_job(EXAMPLES / "blocks.toml"))


def test_a_graphs_keys_can_be_changed_in_python() -> None:
    """What follows from them changes with them: ``culm.run(job, overrides=...)``."""
    job = load_job(EXAMPLES / "blocks.toml")
    assert with_values(job, {}) == job
    changed = with_values(job, {"graph.chunks": 4, "graph.args": {"vertices": 50}})
    assert changed.pipeline.pipelines == 4
    assert changed.data.args["args"] == {"vertices": 50}
    with pytest.raises(JobError, match=r"\[graph\] sets pipeline.pipelines; leave that key out"):
        with_values(job, {"pipeline.pipelines": 4})


def test_the_code_on_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text()
    (tmp_path / "of_the_page.py").write_text("".join(re.findall(r"```python\n(.*?)```", text, re.S)))
    monkeypatch.syspath_prepend(tmp_path)
    whole, *_ = re.findall(r"```toml\n(.*?)```", text, re.S)
    changes = {
        "job.steps": 20,
        "graph.data": "of_the_page:circle",
        "graph.args": {"vertices": 60},
        "model.layers": "of_the_page:layers",
        "model.args": {"features": 16, "hidden": 8, "classes": 4},
    }
    job = with_values(parse_job(whole), changes)
    check_job(job)
    losses = run_plain(job).losses
    assert losses[-1] < 0.8 * losses[0]


# ---- drawn graphs, and what is done to them -------------------------------------------------------------------------


@pytest.mark.parametrize("made", [lambda seed: blocks(vertices=300, seed=seed), lambda seed: rmat(scale=8, seed=seed)])
def test_a_drawn_graph_is_the_same_for_a_seed(made: Any) -> None:
    graph, again, other = made(0), made(0), made(1)
    graph.check()
    assert torch.equal(graph.sources, again.sources)
    assert torch.equal(graph.features, again.features)
    assert not torch.equal(graph.features, other.features)
    sets = torch.stack([graph.train, graph.valid, graph.test]).sum(1) / graph.vertices
    assert sets.sum() == pytest.approx(1.0)
    assert sets.tolist() == pytest.approx([0.6, 0.2, 0.2], abs=0.08)


def test_most_neighbours_in_blocks_are_of_the_same_class() -> None:
    graph = blocks(vertices=2000, classes=4, mixing=0.2)
    away = graph.sources != graph.targets
    inside = graph.labels[graph.sources[away]] == graph.labels[graph.targets[away]]
    assert inside.float().mean() == pytest.approx(0.85, abs=0.02), "a quarter of the edges that lead anywhere, too"


def small() -> Graph:
    return Graph(
        sources=torch.tensor([0, 1, 1, 2]),
        targets=torch.tensor([1, 0, 2, 2]),
        features=torch.zeros(4, 2),
        labels=torch.tensor([0, 1, 0, 1]),
        train=torch.tensor([True, True, False, False]),
    )


def test_both_directions_once_then_loops_and_weights() -> None:
    both = small().undirected()
    ends = list(zip(both.sources.tolist(), both.targets.tolist(), strict=True))
    assert ends == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 2)]
    graph = both.normalized()
    assert graph.weights is not None
    numbers = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    found = dict(zip(numbers, graph.weights.tolist(), strict=True))
    assert found == pytest.approx(
        {
            (0, 1): 6**-0.5,
            (1, 0): 6**-0.5,
            (1, 2): 6**-0.5,
            (2, 1): 6**-0.5,
            (0, 0): 1 / 2,
            (1, 1): 1 / 3,
            (2, 2): 1 / 2,  # it had a loop, and gets no second one
            (3, 3): 1.0,
        }
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": torch.zeros(0, 2)}, "the graph has no vertices"),
        ({"targets": torch.tensor([1, 0])}, r"the shapes \[4\] and \[2\], not both \[E\]"),
        ({"sources": torch.tensor([0, 1, 1, 4])}, "sources go from 0 to 4, and there are 4 vertices"),
        ({"sources": torch.tensor([0.0, 1, 1, 2])}, r"the edges' sources are torch.float32, not torch.int64"),
        ({"weights": torch.ones(3)}, "there are 3 weights for 4 edges"),
        ({"labels": torch.zeros(3)}, "labels has 3 rows, and there are 4 vertices"),
        ({"test": torch.zeros(5)}, "test has 5 rows, and there are 4 vertices"),
        ({"train": torch.zeros(4, dtype=torch.bool)}, "no vertex is trained on"),
        ({"train": torch.tensor([0, 1, 0, 1])}, r"train is torch.int64 \[4\], not torch.bool \[V\]"),
        ({"valid": torch.ones(4, dtype=torch.uint8)}, r"valid is torch.uint8 \[4\], not torch.bool \[V\]"),
        ({"test": torch.ones(4, 2, dtype=torch.bool)}, r"test is torch.bool \[4, 2\], not torch.bool \[V\]"),
        ({"features": torch.zeros(4)}, r"the features are torch.float32 \[4\], not floating point \[V, F\]"),
        ({"features": torch.ones(4, 2, dtype=torch.int64)}, "the features are torch.int64 .*, not floating point"),
        ({"weights": torch.ones(4, dtype=torch.int64)}, "the edges' weights are torch.int64, not floating point"),
    ],
)
def test_a_graph_whose_parts_do_not_fit_is_refused(change: dict[str, torch.Tensor], said: str) -> None:
    with pytest.raises(JobError, match=said) as error:
        replace(small(), **change).check()  # type: ignore[arg-type]
    assert "\n" not in str(error.value)

"""Graphs from files and from torch_geometric: what they hold, and that a bad input is one line with its place."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from culm.graphs import Graph
from culm.graphs.readers import arrays, edge_list, from_pyg, pyg
from culm.pipeline.errors import JobError

EDGES = [(0, 1), (1, 2), (3, 1)]
FEATURES = [[0.5, 1.0], [1.5, -2.0], [0.0, 3.0], [2.0, 2.0]]
LABELS = [0, 1, 1, 0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph as text, from where the paths of a job's arguments are looked up."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.txt").write_text("# a graph\n0 1\n\n1\t2  # an edge\n3,1\n")
    (tmp_path / "x.txt").write_text("\n".join(" ".join(map(str, row)) for row in FEATURES))
    (tmp_path / "y.txt").write_text("\n".join(map(str, LABELS)))
    return tmp_path


def ends_of(graph: Graph) -> list[tuple[int, int]]:
    return list(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))


def said(error: "pytest.ExceptionInfo[JobError]", *words: str) -> None:
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


# ---- text -----------------------------------------------------------------------------------------------------------


def test_text_is_read_as_it_stands(folder: Path) -> None:
    (folder / "train.txt").write_text("0\n2\n")
    graph = edge_list("edges.txt", "x.txt", "y.txt", train="train.txt", prepare="none")
    assert ends_of(graph) == EDGES
    assert graph.features.tolist() == FEATURES
    assert (graph.labels.tolist(), graph.labels.dtype) == (LABELS, torch.int64)
    assert graph.train.tolist() == [True, False, True, False]
    assert (graph.weights, graph.valid, graph.test) == (None, None, None)


def test_what_is_done_to_it(folder: Path) -> None:
    both = edge_list("edges.txt", "x.txt", "y.txt", seed=1, prepare="undirected")
    assert sorted(ends_of(both)) == sorted(EDGES + [(t, s) for s, t in EDGES])
    graph = edge_list("edges.txt", "x.txt", "y.txt", seed=1)
    assert len(graph.sources) == 10, "each edge both ways, and a loop at each vertex"
    assert graph.weights is not None
    assert graph.valid is not None
    assert graph.test is not None
    assert (graph.train.int() + graph.valid.int() + graph.test.int()).tolist() == [1] * 4


def test_a_third_column_is_a_weight(folder: Path) -> None:
    (folder / "edges.txt").write_text("0 1 0.5\n1 2 2\n")
    graph = edge_list("edges.txt", "x.txt", "y.txt", prepare="none")
    assert graph.weights is not None
    assert graph.weights.tolist() == [0.5, 2.0]
    with pytest.raises(JobError) as error:
        edge_list("edges.txt", "x.txt", "y.txt")
    said(error, "edges.txt has weights", 'set prepare = "none" to keep them')


@pytest.mark.parametrize("between", [" ", "\t", ",", ", "])
def test_columns_stand_apart_as_they_like(folder: Path, between: str) -> None:
    """Numpy reads spaces and tabs at once, and commas are read line by line: the numbers are the same."""
    lines = [between.join((str(s), str(t), str(w))) for (s, t), w in zip(EDGES, ("0.1", "2", "1e-3"), strict=True)]
    (folder / "edges.txt").write_text("# s t w\n" + "\n".join(lines))
    graph = edge_list("edges.txt", "x.txt", "y.txt", prepare="none")
    assert ends_of(graph) == EDGES
    assert graph.weights is not None
    assert graph.weights.tolist() == torch.tensor([0.1, 2.0, 1e-3]).tolist()


def test_arrays_of_numpy_beside_the_text(folder: Path) -> None:
    np.save(folder / "x.npy", np.array(FEATURES, np.float64))
    np.save(folder / "y.npy", np.array(LABELS, np.int32))
    np.save(folder / "train.npy", np.array([True, True, False, False]))
    graph = edge_list("edges.txt", "x.npy", "y.npy", train="train.npy", test="train.npy", prepare="none")
    assert (graph.features.dtype, graph.labels.dtype) == (torch.float32, torch.int64)
    assert graph.train.tolist() == [True, True, False, False]
    assert graph.test is not None
    assert graph.test.tolist() == graph.train.tolist()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("edges.txt", "0 1\n1 two\n", ["edges.txt: line 2 has 'two', no vertex's number", "count vertices from 0"]),
        ("edges.txt", "0 1\n1 -2\n", ["edges.txt: line 2 has '-2'"]),
        ("edges.txt", "0 1\n1 2.0\n", ["edges.txt: line 2 has '2.0'"]),
        ("edges.txt", "0 1\n1 99999999999999999999\n", ["edges.txt: line 2"]),
        ("edges.txt", "0 1\n# no\n1\n", ["edges.txt: line 3 has 1 columns, and those before it have 2"]),
        ("edges.txt", "0\n", ["edges.txt: line 1 has 1 columns", "SOURCE TARGET"]),
        ("edges.txt", "0 1 0.5\n1 2 heavy\n", ["edges.txt: line 2 has 'heavy', no number"]),
        ("edges.txt", "0 1 nan\n", ["edges.txt: line 1 has 'nan', which is not finite"]),
        ("edges.txt", "# nothing\n", ["edges.txt has no edges"]),
        ("edges.txt", "0 4\n", ["the edges' targets go from 4 to 4, and there are 4 vertices"]),
        ("x.txt", "1 2\n1\n", ["x.txt: line 2 has 1 columns, and those before it have 2"]),
        ("x.txt", "1 2\n1 inf\n", ["x.txt: line 2 has 'inf'"]),
        ("x.txt", "", ["x.txt, the features, has no rows"]),
        ("y.txt", "0\n1\n", ["labels has 2 rows, and there are 4 vertices"]),
        ("y.txt", "0\nred\n", ["y.txt: line 2 has 'red', no number"]),
        ("train.txt", "0\n4\n", ["train of train.txt has numbers from 0 to 4, and there are 4 vertices"]),
        ("train.txt", "0\n0.5\n", ["train of train.txt", "no row of whole numbers"]),
    ],
)
def test_what_is_wrong_with_text_is_said_with_its_line(folder: Path, file: str, text: str, words: list[str]) -> None:
    (folder / "train.txt").write_text("0\n")
    (folder / file).write_text(text)
    with pytest.raises(JobError) as error:
        edge_list("edges.txt", "x.txt", "y.txt", train="train.txt", prepare="none")
    said(error, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "gone.txt"}, ["/gone.txt cannot be read", "No such file", "name a text file that every node has"]),
        ({"path": "."}, ["cannot be read: [Errno 21]"]),
        ({"features": "gone.npy"}, ["gone.npy, the features, cannot be read", "numpy.save"]),
        ({"labels": "bytes.npy"}, ["bytes.npy, the labels, cannot be read"]),
        ({"labels": "empty.npy"}, ["empty.npy, the labels, cannot be read"]),
        ({"path": "bytes.npy"}, ["bytes.npy cannot be read"]),
        ({"valid": "y.txt"}, ["valid or test is given, and train is not"]),
        ({"prepare": "gnc"}, ["prepare is 'gnc'", "it may be gcn, undirected, none"]),
    ],
)
def test_what_is_wrong_with_files_is_said(folder: Path, arguments: dict[str, str], words: list[str]) -> None:
    (folder / "bytes.npy").write_bytes(b"\xff\xfe\x00nothing")
    (folder / "empty.npy").touch()
    with pytest.raises(JobError) as error:
        edge_list(**{"path": "edges.txt", "features": "x.txt", "labels": "y.txt"} | arguments)  # type: ignore[arg-type]
    said(error, *words)


# ---- a file of arrays -----------------------------------------------------------------------------------------------


def parts(**others: Any) -> dict[str, Any]:
    ends = np.array(EDGES)
    whole = {"sources": ends[:, 0], "targets": ends[:, 1], "features": np.array(FEATURES), "labels": np.array(LABELS)}
    return {name: each for name, each in (whole | others).items() if each is not None}


def test_arrays_are_read_as_they_are(tmp_path: Path) -> None:
    path = str(tmp_path / "graph.npz")
    train = np.array([True, False, False, True])
    np.savez(path, **parts(weights=np.array([1, 2, 3]), train=train, test=np.array([1])))
    graph = arrays(path, prepare="none")
    assert ends_of(graph) == EDGES
    assert (graph.features.tolist(), graph.labels.tolist()) == (FEATURES, LABELS)
    assert graph.weights is not None
    assert graph.weights.tolist() == [1.0, 2.0, 3.0]
    assert graph.train.tolist() == train.tolist()
    assert graph.test is not None
    assert graph.test.tolist() == [False, True, False, False]
    assert graph.valid is None


def test_labels_that_are_no_classes_stay_numbers(tmp_path: Path) -> None:
    path = str(tmp_path / "graph.npz")
    np.savez(path, **parts(labels=np.array([0.5, 1, 2, 3])))
    graph = arrays(path)
    assert (graph.labels.dtype, graph.labels.tolist()) == (torch.float32, [0.5, 1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"labels": None, "targets": None}, ["has no targets and no labels; it has features, sources", "numpy.savez"]),
        ({"sources": np.array([0.5, 1, 2])}, ["sources of", "float64 [3], no row of whole numbers"]),
        ({"sources": np.array([np.inf, 1, 2])}, ["no row of whole numbers"]),
        ({"sources": np.array([0])}, ["the edges' sources and targets have the shapes [1] and [3], not both [E]"]),
        ({"sources": np.array([0, -1, 2])}, ["sources go from -1 to 2, and there are 4 vertices"]),
        ({"features": np.zeros(4)}, ["the features of", "float64 [4], not numbers [V, F]"]),
        ({"features": np.full((4, 2), np.nan)}, ["the features of vertex 0 of", "are not finite"]),
        ({"features": np.zeros((0, 2)), "labels": np.zeros(0)}, ["the graph has no vertices"]),
        ({"labels": np.array(["a", "b", "a", "b"])}, ["the labels of", "are no finite numbers"]),
        ({"train": np.array([True])}, ["train of", "has 1 bools, and there are 4 vertices"]),
        ({"train": np.zeros(4, bool)}, ["no vertex is trained on"]),
        ({"test": np.array([1])}, ["has test, and no train"]),
        ({"weights": np.array([1.0])}, ["there are 1 weights for 3 edges"]),
        ({"weights": np.array([1.0, np.nan, 1.0])}, ["weights of", "are no finite numbers"]),
        ({"labels": np.array([{}] * 4)}, ["cannot be read"]),
    ],
)
def test_what_is_wrong_with_arrays_is_said(tmp_path: Path, others: dict[str, Any], words: list[str]) -> None:
    path = str(tmp_path / "graph.npz")
    np.savez(path, **parts(**others))
    with pytest.raises(JobError) as error:
        arrays(path, prepare="none")
    said(error, *words)


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04nothing"])
def test_a_file_that_is_no_npz_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "graph.npz"
    path.write_bytes(content)
    with pytest.raises(JobError) as error:
        arrays(str(path))
    said(error, "graph.npz cannot be read", "write it with numpy.savez")


def test_one_array_alone_is_no_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(JobError) as error:
        arrays(str(tmp_path / "x.npy"))
    said(error, "x.npy is one array, no .npz file", "write it with numpy.savez")


# ---- torch_geometric ------------------------------------------------------------------------------------------------


def data_of(**others: Any) -> Any:
    """As torch_geometric's Data has them. Its own is tried below, where it is installed."""
    whole = {"x": torch.tensor(FEATURES), "edge_index": torch.tensor(EDGES).T, "y": torch.tensor(LABELS)}
    return SimpleNamespace(**(whole | others))


def three_splits() -> torch.Tensor:
    return torch.tensor([[True, False], [False, True], [True, True], [False, False]])


def made(count: int = 1) -> list[Any]:
    """What a job names: a dataset of graphs."""
    return [data_of(train_mask=torch.tensor([True, False, True, False])) for _ in range(count)]


def test_data_becomes_a_graph() -> None:
    graph = from_pyg(data_of(train_mask=three_splits(), edge_attr=torch.ones(3, 1)), prepare="none")
    assert ends_of(graph) == EDGES
    assert graph.features.tolist() == FEATURES
    assert graph.train.tolist() == [True, False, True, False], "of several splits the first"
    assert graph.weights is not None
    assert graph.weights.tolist() == [1.0, 1.0, 1.0]


def test_data_of_torch_geometric_becomes_a_graph() -> None:
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    mask = torch.tensor([True, False, True, False])
    of = data.Data(
        x=torch.tensor(FEATURES, dtype=torch.float64),
        edge_index=torch.tensor(EDGES).T,
        y=torch.tensor(LABELS)[:, None],
        train_mask=mask,
        val_mask=~mask,
    )
    graph = from_pyg(of, prepare="none")
    assert (ends_of(graph), graph.features.tolist(), graph.labels.tolist()) == (EDGES, FEATURES, LABELS)
    assert graph.valid is not None
    assert graph.valid.tolist() == (~mask).tolist()
    assert (graph.weights, graph.test) == (None, None)
    assert ends_of(from_pyg(of)) == ends_of(from_pyg(data_of(train_mask=mask)))


def test_a_job_names_what_makes_the_data() -> None:
    assert ends_of(pyg("tests.unit.test_graph_readers:made", prepare="none")) == EDGES
    with pytest.raises(JobError) as error:
        pyg("tests.unit.test_graph_readers:made", {"count": 0})
    said(error, "its first graph", "IndexError")
    with pytest.raises(JobError) as error:
        pyg("tests.unit.test_graph_readers:made", {"many": 1})
    said(error, "graph.args.args", "TypeError")
    with pytest.raises(JobError) as error:
        pyg("tests.unit.test_graph_readers:EDGE")
    said(error, "graph.args.make", "did you mean EDGES?")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"x": None, "y": None}, ["graph.args, a SimpleNamespace: it has no tensor x and no y", "Data with x"]),
        ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, ["edge_index has the shape [3, 2], not [2, E]"]),
        ({"edge_attr": torch.zeros(3, 2)}, ["edge_attr has the shape [3, 2], and an edge has one weight"]),
        ({"edge_weight": torch.zeros(3), "prepare": "gcn"}, ["has weights", 'set prepare = "none"']),
        ({"x": torch.zeros(4)}, ["the features", "not numbers [V, F]"]),
        ({"train_mask": torch.zeros(4, dtype=torch.bool)}, ["no vertex is trained on"]),
        ({"val_mask": torch.ones(4, dtype=torch.bool)}, ["has valid, and no train"]),
    ],
)
def test_what_is_wrong_with_data_is_said(others: dict[str, Any], words: list[str]) -> None:
    prepare = others.pop("prepare", "none")
    with pytest.raises(JobError) as error:
        from_pyg(data_of(**others), prepare=prepare)
    said(error, *words)

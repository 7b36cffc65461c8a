"""Graphs from files and from torch_geometric: ``data = "culm.graphs.readers:edge_list"``, ``:arrays`` or ``:pyg``.

What is read becomes a ``Graph`` as it is. ``prepare`` says what is done to it then: "gcn" adds each edge's other
direction, a loop at every vertex and the weights of Kipf and Welling. ``:chunks`` opens what ``culm chunks`` has cut.
"""

import warnings
import zipfile
from collections.abc import Iterator
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch

from culm.graphs.chunk_folder import ChunkFolder
from culm.graphs.datasets import split
from culm.pipeline.errors import JobError
from culm.pipeline.user_code.graph.graph import Graph
from culm.pipeline.user_code.imports import called, load_callable

WHERE = "graph.args"
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile)  # what numpy raises on files of another kind
PREPARED = ("gcn", "undirected", "none")
_TEXT = "write a line for each edge: SOURCE TARGET, or SOURCE TARGET WEIGHT"
Array = np.ndarray[Any, Any]


def chunks(path: str) -> ChunkFolder:
    """A folder that ``culm chunks`` has written. Raises JobError."""
    return ChunkFolder(Path(path))


def edge_list(
    path: str,
    features: str,
    labels: str,
    train: str = "",
    valid: str = "",
    test: str = "",
    seed: int = 0,
    prepare: str = "gcn",
) -> Graph:
    """Edges as text, a line each: SOURCE TARGET, or SOURCE TARGET WEIGHT; what follows a # is a comment.

    ``features``, ``labels``: a file of a row for each vertex, .npy, or text with spaces or commas between numbers.
    ``train``, ``valid``, ``test``: files of vertices' numbers, or .npy of bools; without ``train`` six tenths of the
    vertices are drawn by ``seed`` to train on, and two tenths each for the others. Raises JobError.
    """
    edges = _edges_of(Path(path))
    values = _numbers_of(Path(features), "features")
    if values.ndim == 1:
        values = values[:, None]
    classes = _numbers_of(Path(labels), "labels")
    masks: dict[str, torch.Tensor | None] = {"train": None, "valid": None, "test": None}
    if train:
        named = {"train": train, "valid": valid, "test": test}
        masks |= {name: _mask_of(Path(file), name, len(values)) for name, file in named.items() if file}
    elif valid or test:
        raise JobError("valid or test is given, and train is not", WHERE, "name a file for train, too")
    else:
        masks = dict(zip(masks, split(len(values), seed), strict=True))
    return _made(path, edges, values, classes, masks, prepare)


def arrays(path: str, seed: int = 0, prepare: str = "gcn") -> Graph:
    """A .npz file with ``sources`` and ``targets`` [E], ``features`` [V, F] and ``labels`` [V].

    It may have ``weights`` [E], and ``train``, ``valid``, ``test``: bools [V], or numbers of vertices; without
    ``train`` they are drawn as ``edge_list`` draws them. Raises JobError.
    """
    mend = "write it with numpy.savez(path, sources=..., targets=..., features=..., labels=..., train=...)"
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise JobError(f"{path} is one array, no .npz file", WHERE, mend)
        with loaded as file:
            found: dict[str, Array] = {name: file[name] for name in file.files}
    except UNREADABLE as error:
        raise JobError(f"{Path(path).absolute()} cannot be read: {_first_line(error)}", WHERE, mend) from error
    if missing := [name for name in ("sources", "targets", "features", "labels") if name not in found]:
        what = f"{path} has no {' and no '.join(missing)}; it has {', '.join(sorted(found)) or 'nothing'}"
        raise JobError(what, WHERE, mend)
    count = len(found["features"]) if found["features"].ndim else 0
    masks = _masks_in(found, path, count, seed)
    sources, targets = (_whole(found[name], f"{name} of {path}") for name in ("sources", "targets"))
    edges = (sources, targets, found.get("weights"))
    return _made(path, edges, found["features"], found["labels"], masks, prepare)


def pyg(make: str, args: dict[str, Any] | None = None, seed: int = 0, prepare: str = "gcn") -> Graph:
    """What ``make``, as MODULE:NAME, gives when it is called with ``args``: a Data of torch_geometric, or a dataset, of
    which the first one is taken. Raises JobError.
    """
    made = called(load_callable(make, f"{WHERE}.make"), args or {}, f"{WHERE}.args")
    if not hasattr(made, "edge_index") and hasattr(made, "__getitem__"):
        made = called(partial(getitem, made, 0), {}, f"{WHERE}.make, its first graph")
    return from_pyg(made, seed, prepare)


def from_pyg(data: Any, seed: int = 0, prepare: str = "gcn") -> Graph:
    """Of ``torch_geometric.data.Data``: x, edge_index, y, and where they are there edge_weight or an edge_attr of one
    column, train_mask, val_mask and test_mask. Masks of several splits: the first. Raises JobError.
    """
    where = f"{WHERE}, a {type(data).__name__}"
    mend = "give a torch_geometric.data.Data with x, edge_index and y; of others make a culm.graphs.Graph"
    wanted = ("x", "edge_index", "y")
    if missing := [name for name in wanted if not isinstance(getattr(data, name, None), torch.Tensor)]:
        raise JobError(f"it has no tensor {' and no '.join(missing)}", where, mend)
    ends: torch.Tensor = data.edge_index
    if ends.dim() != 2 or len(ends) != 2:
        raise JobError(f"edge_index has the shape {list(ends.shape)}, not [2, E]", where, mend)
    weights = getattr(data, "edge_weight", None)
    if weights is None:
        weights = getattr(data, "edge_attr", None)
    if weights is not None and weights.dim() == 2 and weights.shape[1] == 1:
        weights = weights[:, 0]
    if weights is not None and weights.dim() != 1:
        what = f"edge_attr has the shape {list(weights.shape)}, and an edge has one weight"
        raise JobError(what, where, "give edge_weight [E], or leave edge_attr out")
    given = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
    found = {}
    for name, theirs in given.items():
        if (mask := getattr(data, theirs, None)) is not None:
            found[name] = _array(mask[:, 0] if mask.dim() == 2 else mask)
    masks = _masks_in(found, where, len(data.x), seed)
    sources, targets = (_whole(_array(each), "edge_index") for each in ends)
    edges = (sources, targets, None if weights is None else _array(weights))
    return _made(where, edges, _array(data.x), _array(data.y), masks, prepare)


def _array(tensor: torch.Tensor) -> Array:
    there = tensor.detach().cpu()
    found: Array = (there.to(torch.float32) if there.is_floating_point() else there).numpy()
    return found


def _made(
    path: str,
    edges: tuple[Array, Array, Array | None],
    features: Array,
    labels: Array,
    masks: dict[str, torch.Tensor | None],
    prepare: str,
) -> Graph:
    """``edges``: sources, targets and weights, [E] each. Raises JobError where the parts do not fit each other."""
    sources, targets, weights = edges
    if prepare not in PREPARED:
        raise JobError(f"prepare is {prepare!r}", WHERE, f"it may be {', '.join(PREPARED)}")
    if weights is not None and prepare != "none":
        what = f"{path} has weights, and prepare = {prepare!r} would drop them"
        raise JobError(what, WHERE, 'set prepare = "none" to keep them, or leave the weights out')
    if weights is not None and not (weights.dtype.kind in "fiub" and np.isfinite(weights).all()):
        raise JobError(f"weights of {path} are no finite numbers", WHERE, "correct them")
    if features.ndim != 2 or features.dtype.kind not in "fiub":
        what = f"the features of {path} are {features.dtype} {list(features.shape)}, not numbers [V, F]"
        raise JobError(what, WHERE, "give a row of numbers for each vertex")
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(1))[0])
        raise JobError(f"the features of vertex {row} of {path} are not finite", WHERE, "correct the row")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "fiub" or not np.isfinite(labels).all():
        raise JobError(f"the labels of {path} are no finite numbers", WHERE, "correct them")
    whole = labels.ndim == 1 and bool(np.equal(labels, np.floor(labels)).all())
    labels = labels.astype(np.int64 if whole else np.float32)  # classes are whole numbers
    train = masks["train"]
    assert train is not None, "train is given or drawn"
    graph = Graph(
        sources=torch.from_numpy(sources),
        targets=torch.from_numpy(targets),
        features=torch.from_numpy(np.ascontiguousarray(features, np.float32)),
        labels=torch.from_numpy(labels),
        train=train,
        weights=None if weights is None else torch.from_numpy(np.ascontiguousarray(weights, np.float32)),
        valid=masks["valid"],
        test=masks["test"],
    ).check()
    if prepare == "none":
        return graph
    both = graph.undirected()
    return both.normalized() if prepare == "gcn" else both


def _edges_of(path: Path) -> tuple[Array, Array, Array | None]:
    """Sources and targets [E], and weights where the lines have three columns."""
    first = next(_lines_of(path), None)
    if first is not None and (known := _read_at_once(path, len(first[1]))) is not None:
        return known
    rows = list(_lines_of(path))
    if not rows:
        raise JobError(f"{path} has no edges", WHERE, _TEXT)
    columns = len(rows[0][1])
    if columns not in (2, 3):
        raise JobError(f"line {rows[0][0]} has {columns} columns", str(path), _TEXT)
    ends = np.empty((len(rows), 2), np.int64)
    weights = np.empty(len(rows), np.float32)
    for place, (line, words) in enumerate(rows):
        if len(words) != columns:
            what = f"line {line} has {len(words)} columns, and those before it have {columns}"
            raise JobError(what, str(path), _TEXT)
        for column, word in enumerate(words[:2]):
            if not (word.isascii() and word.isdigit()) or len(word) > 18:
                raise JobError(f"line {line} has {word!r}, no vertex's number", str(path), "count vertices from 0")
            ends[place, column] = int(word)
        if columns == 3:
            weights[place] = _number(words[2], path, line)
    sources, targets = np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])
    return sources, targets, weights if columns == 3 else None


def _read_at_once(path: Path, columns: int) -> tuple[Array, Array, Array | None] | None:
    """By numpy, many times faster; None where a line wants to be looked at, to say what is wrong with it."""
    kinds = [("source", "i8"), ("target", "i8"), ("weight", "f4")]
    if columns not in (2, 3):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as of 2.0 for a whole number
            found = np.loadtxt(path, dtype=kinds[:columns], comments="#", ndmin=1, encoding="utf-8")
    except (OSError, ValueError, OverflowError, Warning):
        return None
    sources, targets = np.ascontiguousarray(found["source"]), np.ascontiguousarray(found["target"])
    weights = np.ascontiguousarray(found["weight"]) if columns == 3 else None
    wrong = min(sources.min(), targets.min()) < 0 or (weights is not None and not np.isfinite(weights).all())
    return None if wrong else (sources, targets, weights)


def _lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number of the line, its words) of those that have some. Raises JobError."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if words := line.partition("#")[0].replace(",", " ").split():
                    yield number, words
    except (OSError, UnicodeDecodeError) as error:
        mend = "name a text file that every node has"
        raise JobError(f"{path.absolute()} cannot be read: {_first_line(error)}", WHERE, mend) from error


def _number(word: str, path: Path, line: int) -> float:
    try:
        found = float(word)
    except ValueError as error:
        raise JobError(f"line {line} has {word!r}, no number", str(path), "correct the line") from error
    if not np.isfinite(found):
        raise JobError(f"line {line} has {word!r}, which is not finite", str(path), "correct the line")
    return found


def _numbers_of(path: Path, what: str) -> Array:
    """Of a .npy file, or of text: [V, columns], or [V] where there is one column."""
    if path.suffix == ".npy":
        mend = "write it with numpy.save, as numbers"
        try:
            loaded = np.load(path, allow_pickle=False)
        except UNREADABLE as error:
            told = f"{path.absolute()}, the {what}, cannot be read: {_first_line(error)}"
            raise JobError(told, WHERE, mend) from error
        if not isinstance(loaded, np.ndarray):
            raise JobError(f"{path}, the {what}, is a file of several arrays", WHERE, mend)
        return loaded
    rows = list(_lines_of(path))
    if not rows:
        raise JobError(f"{path}, the {what}, has no rows", WHERE, "write a row for each vertex")
    columns = len(rows[0][1])
    found = np.empty((len(rows), columns), np.float64)
    for place, (line, words) in enumerate(rows):
        if len(words) != columns:
            wrong = f"line {line} has {len(words)} columns, and those before it have {columns}"
            raise JobError(wrong, str(path), "write as many numbers in each row")
        found[place] = [_number(word, path, line) for word in words]
    return found[:, 0] if columns == 1 else found


def _mask_of(path: Path, name: str, count: int) -> torch.Tensor:
    return _mask(_numbers_of(path, name), f"{name} of {path}", count)


def _masks_in(found: dict[str, Array], path: str, count: int, seed: int) -> dict[str, torch.Tensor | None]:
    """By name; drawn where there is no train."""
    names = ("train", "valid", "test")
    if "train" in found:
        return {name: _mask(found[name], f"{name} of {path}", count) if name in found else None for name in names}
    if given := [name for name in names if name in found]:
        raise JobError(f"{path} has {given[0]}, and no train", WHERE, "say which vertices are trained on")
    return dict(zip(names, split(count, seed), strict=True))


def _mask(given: Array, what: str, count: int) -> torch.Tensor:
    """Bools [V] of bools [V], or of vertices' numbers. Raises JobError."""
    mend = "give a bool for each vertex, or numbers of vertices"
    if given.dtype == bool and given.ndim == 1:
        if len(given) != count:
            raise JobError(f"{what} has {len(given)} bools, and there are {count} vertices", WHERE, mend)
        return torch.from_numpy(given.copy())
    numbers = _whole(given, what)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        wrong = f"{what} has numbers from {numbers.min()} to {numbers.max()}, and there are {count} vertices"
        raise JobError(wrong, WHERE, mend)
    mask = torch.zeros(count, dtype=torch.bool)
    mask[torch.from_numpy(numbers)] = True
    return mask


def _whole(given: Array, what: str) -> Array:
    """As int64 [N]. Raises JobError."""
    if (
        given.ndim != 1
        or given.dtype.kind not in "iuf"
        or not (np.isfinite(given) & np.equal(given, np.floor(given))).all()
    ):
        wrong = f"{what} is {given.dtype} {list(given.shape)}, no row of whole numbers"
        raise JobError(wrong, WHERE, "give whole numbers, in one dimension")
    return given.astype(np.int64)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

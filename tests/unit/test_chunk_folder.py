"""A folder of chunks gives the bits that the graph in memory gives; one that is not as it was written is refused."""

import json
import os
import shutil
import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from culm.graphs import Graph
from culm.graphs.chunk_file import digest_of
from culm.graphs.chunk_folder import ChunkFolder
from culm.graphs.chunk_index import NAME, Index, file_of, index_to_json, read_index
from culm.graphs.cutting import write_chunks
from culm.graphs.datasets import blocks
from culm.graphs.readers import chunks
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.job import Job, load_job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import dataset_of
from culm.pipeline.user_code.graph.check import check_graph
from culm.pipeline.user_code.graph.chunks import Chunk, ChunkedGraph, Chunks
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.samples import samples_of
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import CPU
from culm.stage_server.worker.work import Arrange, Run
from tests.unit.test_graph_chunks import graph_of

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNT = 4


def job_of(*changes: str) -> Job:
    few = ["job.steps=4", "graph.args.vertices=60", f"graph.chunks={COUNT}", 'graph.partitioner="hash"']
    return load_job(EXAMPLES / "blocks.toml", [*few, *changes])


def from_folder(folder: Path) -> Job:
    where = json.dumps(str(folder))
    return job_of('graph.data="culm.graphs.readers:chunks"', f"graph.args={{ path = {where} }}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The job's graph, cut."""
    graph = dataset_of(job_of())
    assert isinstance(graph, ChunkedGraph)
    write_chunks(graph, "hash", tmp_path / "chunks")
    return tmp_path / "chunks"


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def assert_same(one: Chunk, other: Chunk) -> None:
    for field in fields(Chunk):
        if field.name != "taken":
            assert equal(getattr(one, field.name), getattr(other, field.name)), field.name
    assert list(one.taken) == list(other.taken)
    for (rows, first), (others, second) in zip(one.taken.values(), other.taken.values(), strict=True):
        assert equal(rows, others)
        assert first == second


GRAPHS: dict[str, tuple[Graph, int, str]] = {
    "blocks": (blocks(vertices=60, features=5), COUNT, "hash"),
    "masks that are left out": (replace(blocks(vertices=40, features=5), valid=None, test=None), 3, "range"),
    "no edges": (graph_of(5, []), 2, "range"),
    "a vertex in each chunk": (graph_of(4, [(0, 0), (1, 0), (1, 0), (3, 2)]), 4, "range"),
    "one chunk": (graph_of(6, [(5, 0), (1, 0), (3, 0)]), 1, "range"),
    "numbers as labels": (replace(graph_of(5, [(0, 1), (2, 4)]), labels=torch.rand(5, 2).double()), 2, "hash"),
    "classes with names": (replace(graph_of(5, [(0, 1), (2, 4)]), names=("a", "ü", "c")), 2, "hash"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_read_is_what_was_written(name: str, tmp_path: Path) -> None:
    graph, count, by = GRAPHS[name]
    made = ChunkedGraph(graph, count, by)
    write_chunks(ChunkedGraph(graph, count, by), by, tmp_path / "chunks")
    read = ChunkFolder(tmp_path / "chunks")
    assert len(read) == count
    assert read.neighbours == made.neighbours
    assert read.contents == made.contents
    assert read.index.names == graph.names
    for number in range(count):
        assert_same(made.chunk(number), read.chunk(number))
        assert all(map(equal, made[number], read[number]))
        for taker in made.neighbours.after[number]:
            assert equal(made.rows(taker, of=number), read.rows(taker, of=number))


def test_nodes_tell_the_same_of_it_and_the_plain_loop_ends_with_the_same_bits(folder: Path) -> None:
    memory, files = job_of(), from_folder(folder)
    assert samples_of(files, "data", dataset_of(files)) == samples_of(memory, "data", dataset_of(memory))
    one, other = run_plain(memory), run_plain(files)
    assert [x.hex() for x in one.losses] == [x.hex() for x in other.losses]
    assert one.sha256 == other.sha256


def test_every_tensor_begins_where_those_in_memory_do(folder: Path) -> None:
    """Elsewhere products of matrices add up in another order."""
    for number in range(COUNT):
        with safe_open(folder / file_of(number), "pt") as file:
            names = [name for name in file.keys() if not name.endswith(" ")]  # noqa: SIM118
            assert {file.get_tensor(name).data_ptr() % 64 for name in names} == {0}


def test_a_tensor_that_begins_elsewhere_is_copied(folder: Path) -> None:
    """As in a folder of before, which is read as ever."""
    whole = load_file(folder / file_of(1))
    forge(folder, lambda t: [t.pop(name) for name in whole if name.endswith(" ")])
    edit(folder, format=1)
    with safe_open(folder / file_of(1), "pt") as file:
        assert {file.get_tensor(name).data_ptr() % 64 for name in file.keys()} != {0}  # noqa: SIM118
    chunk, graph = ChunkFolder(folder).chunk(1), dataset_of(job_of())
    assert_same(chunk, graph.chunk(1))
    held = [value for field in fields(Chunk) if isinstance(value := getattr(chunk, field.name), torch.Tensor)]
    assert {tensor.data_ptr() % 64 for tensor in [*held, *(rows for rows, _ in chunk.taken.values())]} == {0}


# ---- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["memory", "folder"])
def test_chunks_are_kept_until_they_are_let_go(way: str, folder: Path) -> None:
    graph: Chunks = dataset_of(job_of()) if way == "memory" else ChunkFolder(folder)
    seen = [weakref.ref(graph.chunk(number)) for number in range(3)]
    assert all(graph.chunk(number) is ref() for number, ref in enumerate(seen))
    graph.keep({1})
    assert [ref() is not None for ref in seen] == [False, True, False]


@pytest.mark.parametrize("way", ["memory", "folder"])
def test_a_server_lets_go_of_a_chunk_that_another_one_takes(way: str, folder: Path) -> None:
    job = job_of() if way == "memory" else from_folder(folder)
    compute = Compute(job, ModelSource(job), CPU)

    def arrange(*pipelines: int) -> Arrange:
        duties = tuple((Duty(pipeline, 0), range(1)) for pipeline in pipelines)
        return Arrange(layers=(0,), duties=duties, stages=2, step=0, anew=False)

    def forward(pipeline: int) -> None:
        compute.do(Run(instruction=Instruction(Duty(pipeline, 0), "F", 0), step=0, tenure=1))

    assert compute._graph is not None
    compute.do(arrange(0, 1))
    forward(0)
    forward(1)
    seen = [weakref.ref(compute._graph.chunk(number)) for number in (0, 1)]
    compute.do(arrange(1))
    assert [ref() is not None for ref in seen] == [False, True]
    compute.do(arrange(1, 2))
    forward(2)
    assert seen[1]() is compute._graph.chunk(1)


def test_the_trial_has_one_chunk_at_a_time(folder: Path) -> None:
    """Of a graph that is larger than this machine's memory."""
    seen: list[weakref.ref[Chunk]] = []

    class Watched(ChunkFolder):
        def chunk(self, number: int) -> Chunk:
            assert not [ref for ref in seen if ref() is not None], "the one before has gone"
            found = super().chunk(number)
            seen.append(weakref.ref(found))
            return found

    job = from_folder(folder)
    check_graph(ModelSource(job), job, Watched(folder))
    assert len(seen) == COUNT


# ---- what is not as it was written ----------------------------------------------------------------------------------


def change(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def forge(folder: Path, tensors: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Chunk 1 with other tensors, of which the index tells as of its own."""
    path, index = folder / file_of(1), read_index(folder)
    found = load_file(path)
    tensors(found)
    save_file(found, path)
    parts = list(index.chunks)
    parts[1] = parts[1].model_copy(update={"size": path.stat().st_size, "digest": digest_of(path)})
    write_index(folder, index.model_copy(update={"chunks": tuple(parts)}))


def write_index(folder: Path, index: Index) -> None:
    (folder / NAME).write_text(index_to_json(index))


def with_before(folder: Path, before: tuple[int, ...]) -> None:
    index = read_index(folder)
    first = index.chunks[0].model_copy(update={"before": before})
    write_index(folder, index.model_copy(update={"chunks": (first, *index.chunks[1:])}))


def edit(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / NAME).read_text())
    (folder / NAME).write_text(json.dumps(told | changes))


def with_partitioner(folder: Path) -> None:
    index = json.loads((folder / NAME).read_text())["index"]
    edit(folder, index=index | {"partitioner": "range"})


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def exchange(folder: Path) -> None:
    """Of the same size, so that its digest alone tells."""
    path = folder / file_of(1)
    content = path.read_bytes()
    path.write_bytes(content[::-1])


INDEX: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (shutil.rmtree, "chunks is not there"),
    "an empty folder": (empty, "has no index.json"),
    "no index": (lambda f: (f / NAME).unlink(), "has no index.json"),
    "half an index": (lambda f: os.truncate(f / NAME, 100), "index.json is no JSON"),
    "an index of bytes": (lambda f: (f / NAME).write_bytes(b"\xff\xfe"), "index.json cannot be read"),
    "an index of nothing": (lambda f: (f / NAME).write_text("{}"), "index.json is not an index of chunks"),
    "an index of a list": (lambda f: (f / NAME).write_text("[]"), "index.json is not an index of chunks"),
    "an index of deep nesting": (lambda f: (f / NAME).write_text("[" * 100_000), "index.json is no JSON"),
    "an index of another format": (lambda f: edit(f, format=3), "is of format 3"),
    "an index without its middle": (lambda f: edit(f, index=None), "is not an index of chunks"),
    "an index of other types": (lambda f: edit(f, index={"chunks": 3}), "is not an index of chunks"),
    "an index that was edited": (with_partitioner, "index.json was changed after it was written"),
    "an index with another seal": (lambda f: edit(f, seal="0" * 32), "index.json was changed after it was written"),
    "an index of chunks that are not there": (lambda f: with_before(f, (0, 9)), "names chunks before chunk 0"),
    "an index of no chunk before": (lambda f: with_before(f, ()), "names chunks before chunk 0"),
    "a file that is missing": (lambda f: (f / file_of(1)).unlink(), "chunk-00001.safetensors cannot be read"),
    "half a file": (lambda f: os.truncate(f / file_of(1), 100), "it has 100 bytes, and the index says"),
    "a file of another size": (lambda f: shutil.copy(f / NAME, f / file_of(1)), "and the index says"),
}

FILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of its last tensor": (lambda f: change(f / file_of(1)), "its digest is not the one in the index"),
    "a bit of its header": (lambda f: change(f / file_of(1), 20), "its digest is not the one in the index"),
    "the bytes of another file": (exchange, "its digest is not the one in the index"),
    "a tensor too few": (lambda f: forge(f, lambda t: t.pop("labels")), "it has other tensors: labels"),
    "a tensor too many": (lambda f: forge(f, lambda t: t.update(more=torch.ones(1))), "it has other tensors: more"),
    "edges from beyond its sources": (lambda f: forge(f, lambda t: t["sources"].fill_(9999)), "its sources go from"),
    "edges from below": (lambda f: forge(f, lambda t: t["sources"].fill_(-1)), "its sources go from -1"),
    "rows beyond another chunk": (lambda f: forge(f, lambda t: t["taken.0"].fill_(9999)), "its taken.0 go from"),
    "rows beyond its own": (lambda f: forge(f, lambda t: t["given.0"].fill_(9999)), "its given.0 go from"),
    "starts that go down": (lambda f: forge(f, lambda t: t["starts"].copy_(t["starts"].flip(0))), "its starts do not"),
    "weights too few": (lambda f: forge(f, lambda t: t.update(weights=t["weights"][:-1].clone())), "its weights have"),
    "masks of numbers": (lambda f: forge(f, lambda t: t.update(train=t["train"].int())), "its train are torch.int32"),
    "features of a row": (lambda f: forge(f, lambda t: t.update(inputs=torch.ones(3, 3))), "its inputs have the shape"),
    "rows of floats": (lambda f: forge(f, lambda t: t.update({"taken.0": t["taken.0"].double()})), "its taken.0 are"),
    "sources too many": (
        lambda f: forge(f, lambda t: t.update({"taken.0": torch.cat([t["taken.0"]] * 2)})),
        "it takes other vertices",
    ),
}


def refused(error: "pytest.ExceptionInfo[JobError]", folder: Path, said: str) -> None:
    assert "\n" not in str(error.value)
    assert said in str(error.value)
    assert str(folder) in str(error.value)
    assert "culm chunks" in error.value.mend


@pytest.mark.parametrize("name", INDEX)
def test_a_folder_that_is_broken_is_refused_before_anything_starts(name: str, folder: Path) -> None:
    broken, said = INDEX[name]
    broken(folder)
    with pytest.raises(JobError) as error:
        chunks(str(folder))
    refused(error, folder, said)


@pytest.mark.parametrize("name", FILE)
def test_a_file_that_is_another_one_is_refused_when_it_is_needed(name: str, folder: Path) -> None:
    broken, said = FILE[name]
    broken(folder)
    graph = chunks(str(folder))
    graph.chunk(0)
    with pytest.raises(JobError) as error:
        graph.chunk(1)
    refused(error, folder, said)


def test_a_file_that_changes_while_nobody_runs_its_chunk_is_refused(folder: Path) -> None:
    graph = ChunkFolder(folder)
    graph.chunk(1)
    graph.keep(())
    os.utime(folder / file_of(1))
    graph.chunk(1)
    graph.keep(())
    change(folder / file_of(1))
    os.utime(folder / file_of(1), ns=(1, 1))
    with pytest.raises(JobError, match="its digest is not the one in the index"):
        graph.chunk(1)


def test_a_file_that_no_job_can_use_is_found_before_the_run(folder: Path) -> None:
    change(folder / file_of(1))
    with pytest.raises(JobError, match=r"chunk-00001\.safetensors is not the file that was written for chunk 1"):
        check_job(from_folder(folder))


def test_a_job_that_asks_for_other_chunks(folder: Path) -> None:
    job = from_folder(folder)
    assert job.graph is not None
    for changes, said in (
        ({"chunks": 7}, "graph.chunks is 7, and the graph in .* is cut into 4; set it to 4, or cut"),
        ({"partitioner": "range"}, 'graph.partitioner is "range", and .* is cut by "hash"; set it to "hash", or cut'),
    ):
        graph = job.graph.model_copy(update=changes)
        other = job.model_copy(update={"data": job.data.model_copy(update={"args": graph.sections()["data"]["args"]})})
        with pytest.raises(JobError, match=said):
            dataset_of(other)

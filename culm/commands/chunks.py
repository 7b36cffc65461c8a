"""``culm chunks``: cuts a job's graph once into a folder of files, from which graph servers take what they run."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from culm.commands.run import read_job
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.terminal import flags, interrupts
from culm.terminal.progress import counted

if TYPE_CHECKING:
    from culm.graphs.chunk_index import Index
    from culm.pipeline.user_code.graph.chunks import ChunkedGraph

READER = "culm.graphs.readers:chunks"


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "chunks",
        help="cut a job's graph into files, for graphs larger than a node's memory",
        description="Makes the graph of a job and writes its chunks into a folder, a file each. A job whose data is "
        "culm.graphs.readers:chunks trains from such a folder: each graph server reads the chunks that it runs. This "
        "machine needs memory for the whole graph; see docs/graphs.md.",
        epilog="example: culm chunks examples/blocks.toml blocks.chunks",
    )
    parser.add_argument("job", metavar="JOB.toml", help="the job file")
    parser.add_argument("folder", type=flags.new_folder, metavar="FOLDER", help="the folder to make")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a key of the job"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=chunks)


def chunks(arguments: argparse.Namespace) -> int:
    job = read_job(arguments.job, arguments.set)
    if job.graph is None:
        raise JobError("the job has no graph to cut", arguments.job, "name one that has a [graph] section")
    if job.graph.data == READER:
        mend = "name the data that the folder was cut from"
        raise JobError("the job's graph is a folder of chunks already", "graph.data", mend)
    graph = _made(job)
    from culm.graphs.cutting import write_chunks

    interrupts.end_on_sigterm()
    folder = Path(arguments.folder)
    counted(f"0 of {len(graph)} chunks")
    index = write_chunks(
        graph, job.graph.partitioner, folder, lambda written: counted(f"{written} of {len(graph)} chunks")
    )
    counted("")
    print(_as_json(index, folder) if arguments.json else _in_words(index, folder))
    return 0


def _made(job: Job) -> "ChunkedGraph":
    """The job's graph, in memory."""
    import torch

    from culm.pipeline.user_code.data import dataset_of
    from culm.pipeline.user_code.graph.chunks import ChunkedGraph

    torch.set_num_threads(job.job.threads)
    counted("making the graph")
    made = dataset_of(job)
    if not isinstance(made, ChunkedGraph):
        assert job.graph is not None, "the job has a graph"
        raise JobError("the job's graph is cut already", f"graph.data, {job.graph.data}", "name data that is not")
    return made


def _as_json(index: "Index", folder: Path) -> str:
    of = [{"vertices": each.vertices, "sources": each.sources, "edges": each.edges} for each in index.chunks]
    told = {"folder": str(folder), "bytes": index.size, "contents": index.contents, "partitioner": index.partitioner}
    sizes = [{**each, "bytes": part.size} for each, part in zip(of, index.chunks, strict=True)]
    return json.dumps({**told, "chunks": sizes})


def _in_words(index: "Index", folder: Path) -> str:
    import tomli_w

    parts = index.chunks
    largest = max(parts, key=lambda part: part.size)
    vertices, edges = sum(part.vertices for part in parts), sum(part.edges for part in parts)
    graph = {"chunks": len(parts), "partitioner": index.partitioner, "data": READER, "args": {"path": str(folder)}}
    return (
        f"{folder}: {len(parts)} chunks of {vertices} vertices and {edges} edges, {_size(index.size)}\n"
        f"the largest chunk: {largest.vertices} vertices, {largest.edges} edges, "
        f"{largest.sources - largest.vertices} vertices taken of other chunks, {_size(largest.size)}\n"
        "to train from the folder, write into the job, and keep its other keys:\n\n"
        f"{tomli_w.dumps({'graph': graph})}"
    ).rstrip()


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"

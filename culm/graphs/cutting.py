"""Writes a graph's chunks into a folder, from which a job can train that never has the whole graph in memory.

The folder gets its name when all of it is written: until then it is called NAME.part, and nothing trains from it.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from culm.graphs.chunk_file import ReadChunk, digest_of, write_chunk
from culm.graphs.chunk_index import NAME, Index, Part, file_of, index_to_json
from culm.pipeline.errors import JobError
from culm.pipeline.user_code.graph.chunks import ChunkedGraph


def write_chunks(
    graph: ChunkedGraph, partitioner: str, folder: Path, told: Callable[[int], None] = lambda written: None
) -> Index:
    """``told``: called with how many chunks are written. Raises JobError where the folder cannot be written."""
    part = folder.with_name(f"{folder.name}.part")
    try:
        part.mkdir()
    except OSError as error:
        left = "another culm chunks writes it, or one was killed: wait, or remove it"
        mend = left if isinstance(error, FileExistsError) else "choose a folder that you may write"
        raise JobError(f"{part} cannot be made ({error.strerror})", str(folder), mend) from error
    try:
        parts = []
        for number in range(len(graph)):
            parts.append(_write(graph, number, part / file_of(number)))
            graph.keep(())
            told(number + 1)
        index = Index(partitioner=partitioner, contents=graph.contents, names=graph.graph.names, chunks=tuple(parts))
        (part / NAME).write_text(index_to_json(index), encoding="utf-8")
        for path in (part / NAME, part):
            _to_disk(path)
        os.rename(part, folder)  # replaces one that is empty
        _to_disk(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        what = f"the chunks cannot be written ({getattr(error, 'strerror', None) or error})"
        raise JobError(what, str(folder), "see that the disk has room, and that you may write there") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return index


def _write(graph: ChunkedGraph, number: int, path: Path) -> Part:
    chunk, neighbours = graph.chunk(number), graph.neighbours
    given = {q: graph.rows(q, of=number) for q in neighbours.after[number] if q != number}
    path.touch()  # with the mode of the user's files; safetensors makes one that its owner alone may read
    mode = path.stat().st_mode
    write_chunk(ReadChunk(chunk, given), path)
    path.chmod(mode)
    _to_disk(path)
    return Part(
        size=path.stat().st_size,
        digest=digest_of(path),
        vertices=chunk.size,
        sources=chunk.source_count,
        edges=len(chunk.sources),
        before=neighbours.before[number],
    )


def _to_disk(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

"""The index of a folder of chunks: what is in its files, and how each of them can be told from another."""

# A folder that ``culm chunks`` writes has a file for each chunk, and ``index.json``. The index has a digest of each
# file, and its own *seal*: a digest of all that it says. So whatever was changed, cut short or exchanged is found when
# it is read. ``contents`` is the hash of the graph and its chunks that ``ChunkedGraph`` has: nodes compare it, and need
# to read no file for that.

import json
from functools import cached_property
from pathlib import Path
from typing import Annotated

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from culm.pipeline.errors import JobError
from culm.pipeline.neighbours import Neighbours

FORMAT = 2  # 1: without fillers, see chunk_file
READ = (1, FORMAT)
NAME = "index.json"
WHERE = "graph.args"
CUT = "cut the graph anew with culm chunks"
Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Part(_Strict):
    """One chunk. ``sources``: the vertices that it takes values of; ``before``: the chunks that they are in."""

    size: Some  # of its file, in bytes
    digest: Hash
    vertices: Some
    sources: Some
    edges: Count
    before: tuple[Count, ...]


class Index(_Strict):
    """``names``: of classes, for people."""

    partitioner: str
    contents: Hash
    names: tuple[str, ...]
    chunks: Annotated[tuple[Part, ...], Field(min_length=1)]

    @cached_property
    def neighbours(self) -> Neighbours:
        return Neighbours(tuple(part.before for part in self.chunks))

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(part.size for part in self.chunks)


def file_of(number: int) -> str:
    return f"chunk-{number:05}.safetensors"


def index_to_json(index: Index) -> str:
    said = index.model_dump_json()
    return json.dumps({"format": FORMAT, "seal": _seal(said), "index": json.loads(said)}) + "\n"


def read_index(folder: Path) -> Index:
    """Raises JobError where the folder has none that this version wrote."""
    path = folder / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"{folder} is no folder of chunks, since it has no {NAME}"
        if not folder.exists():
            from_here = "" if folder.is_absolute() else f", from where this process looks, {Path.cwd()}"
            what = f"{folder} is not there{from_here}"
        raise JobError(what, WHERE, "name a folder that culm chunks has made") from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise JobError(f"{path} cannot be read: {why}", WHERE, f"let this user read it, or {CUT}") from error
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobError(f"{path} is no JSON: it was cut short, or is another file", WHERE, CUT) from error
    if not isinstance(told, dict) or "format" not in told:
        raise JobError(f"{path} is not an index of chunks", WHERE, CUT)
    if told["format"] not in READ:
        what = f"{path} is of format {str(told['format'])[:20]}, and this version of Culm reads format 1 to {FORMAT}"
        raise JobError(what, WHERE, f"{CUT} of this version")
    try:
        index = Index.model_validate_json(json.dumps(told.get("index")))
    except (ValidationError, RecursionError) as error:
        raise JobError(f"{path} is not an index of chunks: {_first(error)}", WHERE, CUT) from error
    if told.get("seal") != _seal(index.model_dump_json()):
        raise JobError(f"{path} was changed after it was written", WHERE, CUT)
    for number, part in enumerate(index.chunks):
        if list(part.before) != sorted({number, *part.before}) or part.before[-1] >= len(index.chunks):
            raise JobError(f"{path} names chunks before chunk {number} that cannot be", WHERE, CUT)
    return index


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    return type(error).__name__


def _seal(said: str) -> str:
    return xxhash.xxh3_128_hexdigest(said.encode())

"""One chunk of a graph as a file of tensors, in safetensors' format."""

# ``taken.Q`` are the rows of chunk Q's output that the chunk takes, and ``given.Q`` the rows of its own output that
# chunk Q takes. The second one lies in Q's file too: so whoever runs a chunk reads the chunk's own file alone.
#
# Products of matrices add up in another order where a tensor does not begin at a multiple of 16 bytes. So every tensor
# begins at a multiple of 64, as torch's own do: the header is filled up, and behind each tensor there is a *filler* of
# its dtype. safetensors lays tensors out by dtype, then by name, so a filler's name is that of its tensor and a space.
# What a file of before, or another layout, has elsewhere is copied.
#
# A file is mapped into memory and not read: the system may drop what was not used for a while, and processes of one
# machine share it. Before that its digest is compared, and every number in it that is a place somewhere: a product of
# matrices does not look whether its columns are there.

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from culm.graphs.chunk_index import Index, Part
from culm.pipeline.tensors.as_sent import as_sent
from culm.pipeline.tensors.layout import ALIGNMENT
from culm.pipeline.user_code.graph.chunks import Chunk, Rows

FILLER = " "
PIECE = 1 << 22  # bytes that are read at once for a digest
MASKS = ("train", "valid", "test")
PLAIN = ("vertices", "starts", "sources", "weights", "inputs", "labels", *MASKS)


class Unfit(Exception):
    """The file does not hold the chunk that the index tells of: why."""


class ReadChunk(NamedTuple):
    """``given``: by other chunk, which rows of this chunk's output it takes."""

    chunk: Chunk
    given: Mapping[int, torch.Tensor]


def tensors_of(read: ReadChunk) -> dict[str, torch.Tensor]:
    """By the names that they have in the file."""
    chunk = read.chunk
    found = {name: getattr(chunk, name) for name in PLAIN}
    found |= {f"taken.{q}": rows for q, (rows, _) in chunk.taken.items()}
    found |= {f"given.{q}": rows for q, rows in read.given.items()}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def write_chunk(read: ReadChunk, path: Path) -> None:
    """Raises OSError and SafetensorError."""
    found = tensors_of(read)
    for name, tensor in list(found.items()):
        if missing := -tensor.nbytes % ALIGNMENT:
            found[name + FILLER] = tensor.new_zeros(missing // tensor.itemsize)
    save_file(found, path, {"filler": ""})  # how long its header is, it tells once it is written
    with path.open("rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
    save_file(found, path, {"filler": " " * (-header % ALIGNMENT)})


def digest_of(path: Path) -> str:
    """Of the whole file."""
    digest, piece = xxhash.xxh3_128(), bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(memoryview(piece)[:count])
    return digest.hexdigest()


def map_chunk(path: Path, index: Index, number: int) -> ReadChunk:
    """The chunk, mapped from its file. Raises OSError, and Unfit where it is not what the index tells of."""
    try:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if not name.endswith(FILLER)]  # noqa: SIM118
            found = {name: as_sent(file.get_tensor(name)) for name in names}
    except SafetensorError as error:
        raise Unfit(f"it is no file of tensors ({error})") from error
    _check(found, index, number)
    part, rows, first = index.chunks[number], {}, index.chunks[number].vertices
    for q in part.before:
        if q != number:
            rows[q] = Rows(found[f"taken.{q}"], first)
            first += len(rows[q].rows)
    chunk = Chunk(number=number, taken=rows, **{name: found[name] for name in PLAIN})
    after = index.neighbours.after[number]
    return ReadChunk(chunk, {q: found[f"given.{q}"] for q in after if q != number})


def _check(found: Mapping[str, torch.Tensor], index: Index, number: int) -> None:
    part, after = index.chunks[number], index.neighbours.after[number]
    before = [q for q in part.before if q != number]
    places = {f"taken.{q}": index.chunks[q].vertices for q in before}
    places |= {f"given.{q}": part.vertices for q in after if q != number}
    if found.keys() != {*PLAIN, *places}:
        odd = sorted(found.keys() ^ {*PLAIN, *places})
        raise Unfit(f"it has other tensors: {', '.join(odd[:3])}")
    for name, kind, count in _wanted(part):
        if kind is not None and found[name].dtype != kind:
            raise Unfit(f"its {name} are {found[name].dtype}, not {kind}")
        if found[name].shape[:1] != (count,) or (found[name].dim() != 1 and name not in ("inputs", "labels")):
            raise Unfit(f"its {name} have the shape {list(found[name].shape)}, and the index says {count} rows")
    for name, most in {**places, "sources": part.sources}.items():
        rows = found[name]
        if rows.dtype != torch.int64 or rows.dim() != 1:
            raise Unfit(f"its {name} are {rows.dtype} {list(rows.shape)}, not a row of torch.int64")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < most:
            raise Unfit(f"its {name} go from {int(rows.min())} to {int(rows.max())}, and there are {most} rows")
    if part.vertices + sum(len(found[f"taken.{q}"]) for q in before) != part.sources:
        raise Unfit(f"it takes other vertices than the {part.sources} that the index tells of")
    starts = found["starts"]
    if int(starts[0]) or int(starts[-1]) != part.edges or bool((starts.diff() < 0).any()):
        raise Unfit(f"its starts do not go up from 0 to its {part.edges} edges")


def _wanted(part: Part) -> list[tuple[str, torch.dtype | None, int]]:
    """Of each tensor its dtype, where only one will do, and its rows."""
    return [
        ("vertices", torch.int64, part.vertices),
        ("starts", torch.int64, part.vertices + 1),
        ("sources", torch.int64, part.edges),
        ("weights", None, part.edges),
        ("inputs", None, part.sources),
        ("labels", None, part.vertices),
        *((name, torch.bool, part.vertices) for name in MASKS),
    ]

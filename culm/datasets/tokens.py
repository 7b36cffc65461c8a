"""Blocks of tokens from files on disk: ``dataset = "culm.datasets.tokens:blocks"``.

A file is one long row of tokens, as ``numpy.asarray(tokens, "uint16").tofile("train.bin")`` writes it, or a .npy file
of one dimension. It is mapped into memory: only what a microbatch takes is read, and processes of one machine share it.

A raw file does not say what its numbers are. Read as narrower ones than were written it has as many times more of them,
all of which may be tokens of the model: the upper halves, which are zeros, or small where the vocabulary is large. A
run would train on these without an error, so ``_refuse_wider`` looks for them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from culm.pipeline.errors import JobError
from culm.pipeline.user_code.fingerprint import contents_of

WHERE = "data.args"
DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
WRITTEN = {2: "uint16", 4: "int32", 8: "int64"}  # by bytes: what a file of wider numbers most likely has
LOOKED_AT = 1 << 16  # numbers at a file's beginning
FEWEST = 64  # numbers from which on every second zero is no chance
UPPER = 3  # the largest upper half of a token, read as uint16: vocabularies have fewer than 2^18 tokens


def blocks(files: str | Sequence[str], context: int, dtype: str = "uint16") -> "Blocks":
    """The files' tokens in blocks of ``context``, one after the other; what is left at a file's end is left out.

    ``files``: a path, or a list of them; ``dtype``: of the numbers in files other than .npy. Raises JobError.
    """
    if index(context) < 1:
        raise JobError(f"context is {context}", WHERE, "give the number of tokens in a sample")
    paths = [Path(file) for file in ([files] if isinstance(files, str) else files)]
    if not paths:
        raise JobError("files is empty", WHERE, "name one file of tokens or more")
    read = ", ".join(f"{path} as {'.npy' if path.suffix == '.npy' else dtype}" for path in paths)
    return Blocks([_mapped(path, dtype) for path in paths], context, read_as=read)


class Blocks(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs of tokens [T] and the tokens that follow each of them [T], both int64."""

    def __init__(
        self,
        rows: "Sequence[np.ndarray[Any, Any]]",
        context: int,
        folders: Sequence[Path] = (),
        read_as: str = "",
    ) -> None:
        """``rows``: tokens [N]; ``context``: T; ``folders``: that they were made from, beside files that the job names;
        ``read_as``: the files and their dtype, in words. Raises JobError where there are too few tokens for one block.
        """
        self._rows, self._context, self._folders = rows, context, folders
        self.read_as = read_as  # a job's check names it where a model does not take these tokens
        # A block's last token has one that follows it, so a file of N tokens has (N - 1) // T blocks.
        self._ends = list(accumulate(max(0, (len(row) - 1) // context) for row in rows))
        if not self._ends[-1]:
            what = f"the files have {sum(map(len, rows))} tokens, and a sample takes {context + 1}"
            raise JobError(what, WHERE, "name a longer file, or lower context")

    @property
    def contents(self) -> str:
        """A hash of the folders: nodes compare it, beside some of the samples (rule 23)."""
        return contents_of(self._folders)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, block: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= block < len(self):
            raise IndexError(block)
        file = bisect_right(self._ends, block)
        first = (block - (self._ends[file - 1] if file else 0)) * self._context
        found = torch.from_numpy(self._rows[file][first : first + self._context + 1].astype(np.int64))
        return found[:-1], found[1:]


def _mapped(path: Path, dtype: str) -> "np.ndarray[Any, Any]":
    try:
        if path.suffix == ".npy":
            row = np.load(path, mmap_mode="r")
        elif dtype not in DTYPES:
            raise JobError(f"dtype is {dtype!r}", WHERE, f"it may be {', '.join(DTYPES)}")
        elif path.stat().st_size % np.dtype(dtype).itemsize:
            what = f"{path} has {path.stat().st_size} bytes, no whole number of {dtype}"
            raise JobError(what, WHERE, "give the dtype with which it was written")
        else:
            row = np.memmap(path, f"<{np.dtype(dtype).str[1:]}", "r")
            _refuse_wider(path, row, dtype)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        mend = "name a file of tokens that every node has"
        raise JobError(f"{path.absolute()} cannot be read: {said}", WHERE, mend) from error
    if row.ndim != 1 or row.dtype.name not in DTYPES:
        mend = f"write one row of whole numbers: {', '.join(DTYPES)}"
        raise JobError(f"{path} has {row.dtype} {list(row.shape)}", WHERE, mend)
    return row  # type: ignore[no-any-return]


def _refuse_wider(path: Path, row: "np.ndarray[Any, Any]", dtype: str) -> None:
    """Raises JobError where the file most likely has wider numbers than it is read as."""
    first = np.asarray(row[:LOOKED_AT])
    for wide in (8, 4, 2):
        parts = wide // first.itemsize
        if parts < 2 or len(first) < FEWEST:
            continue
        found = _upper_parts(first[: len(first) // parts * parts].reshape(-1, parts))
        if found:
            what = f"{path} is read as {dtype}, and {found}: it looks like {WRITTEN[wide]}"
            mend = f'give dtype = "{WRITTEN[wide]}", or write the tokens to a .npy file, which says its dtype'
            raise JobError(what, WHERE, mend)


def _upper_parts(rows: "np.ndarray[Any, Any]") -> str:
    """What shows that each row [parts] is one number, the lowest part first, in words; empty: nothing does."""
    parts = rows.shape[1]
    lower, upper = rows[:, : parts // 2], rows[:, parts // 2 :]
    if not upper.any():
        # A file of zeros, or one that is mostly padded with them, says nothing.
        padded = lower.any(axis=1).mean() < 0.25
        which = "every second number is" if parts == 2 else f"the last {parts // 2} of every {parts} numbers are"
        return "" if padded else f"{which} 0"
    # The upper half of an int32 of a vocabulary that is too large for uint16.
    if rows.itemsize == 2 and parts == 2 and upper.max() <= UPPER and (lower > UPPER).mean() >= 0.9:
        return f"every second number is at most {UPPER}"
    return ""

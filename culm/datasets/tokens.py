"""Blocks of tokens from files on disk: ``dataset = "culm.datasets.tokens:blocks"``.

A file is one long row of tokens, as ``numpy.asarray(tokens, "uint16").tofile("train.bin")`` writes it, or a .npy file
of one dimension. It is mapped into memory: only what a microbatch takes is read, and processes of one machine share it.
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


def blocks(files: str | Sequence[str], context: int, dtype: str = "uint16") -> "Blocks":
    """The files' tokens in blocks of ``context``, one after the other; what is left at a file's end is left out.

    ``files``: a path, or a list of them; ``dtype``: of the numbers in files other than .npy. Raises JobError.
    """
    if index(context) < 1:
        raise JobError(f"context is {context}", WHERE, "give the number of tokens in a sample")
    paths = [Path(file) for file in ([files] if isinstance(files, str) else files)]
    if not paths:
        raise JobError("files is empty", WHERE, "name one file of tokens or more")
    return Blocks([_mapped(path, dtype) for path in paths], context)


class Blocks(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs of tokens [T] and the tokens that follow each of them [T], both int64."""

    def __init__(self, rows: "Sequence[np.ndarray[Any, Any]]", context: int, folders: Sequence[Path] = ()) -> None:
        """``rows``: tokens [N]; ``context``: T; ``folders``: that they were made from, beside files that the job names.
        Raises JobError where there are too few tokens for one block.
        """
        self._rows, self._context, self._folders = rows, context, folders
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
    except (OSError, ValueError) as error:
        raise JobError(f"{path} cannot be read: {error}", WHERE, "name a file of tokens that every node has") from error
    if row.ndim != 1 or row.dtype.name not in DTYPES:
        mend = f"write one row of whole numbers: {', '.join(DTYPES)}"
        raise JobError(f"{path} has {row.dtype} {list(row.shape)}", WHERE, mend)
    return row  # type: ignore[no-any-return]

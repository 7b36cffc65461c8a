"""Local files of any size, read forward: ``dataset = "culm.datasets.hf_iterable:text"``, or ``...:rows``.

As ``culm.datasets.hf``, and nothing is read, made or kept before it is wanted. Samples come in the order of the files.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from culm.datasets.hf import WHERE, Columns, columns_of, folders_of, opened, part, tokenizer_of, tokens_of
from culm.pipeline.errors import JobError
from culm.pipeline.user_code.fingerprint import contents_of

Pair = tuple[Any, Any]


def rows(path: str | Sequence[str], input: Columns, target: Columns, split: str | None = None) -> "IterableRows":  # noqa: A002
    """Rows as they are; arguments as of ``culm.datasets.hf.rows``. Raises JobError."""
    found = opened(path, split, iterable=True)
    wanted = columns_of(found, path, input, target)
    return IterableRows(found.select_columns(wanted).with_format("torch"), input, target, folders_of(path))


def text(
    path: str | Sequence[str], tokenizer: str, context: int, column: str = "text", split: str | None = None
) -> "IterableText":
    """A column of text as tokens, end to end, in blocks; arguments as of ``culm.datasets.hf.text``. Raises JobError.

    A block has ``context`` tokens and the one after them. What is left at the end of an epoch is left out.
    """
    if context < 1:
        raise JobError(f"context is {context}", WHERE, "give the number of tokens in a sample")
    found = opened(path, split, iterable=True)
    columns_of(found, path, column)
    return IterableText(
        found.select_columns([column]), tokenizer_of(tokenizer), context, column, folders_of(path, tokenizer)
    )


class IterableRows(IterableDataset[Pair]):
    """Pairs of (input, target), each a tensor, or a dict of tensors by column."""

    def __init__(self, found: Any, input: Columns, target: Columns, folders: Sequence[Path] = ()) -> None:  # noqa: A002
        """``found``: Hugging Face's iterable dataset, which gives torch's tensors; ``folders``: as of ``Rows``."""
        self._found, self._input, self._target, self._folders = found, input, target, folders

    @property
    def contents(self) -> str:
        return contents_of(self._folders)

    def __iter__(self) -> Iterator[Pair]:
        for row in self._found:
            yield part(row, self._input), part(row, self._target)

    def set_epoch(self, epoch: int) -> None:
        self._found.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._found.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._found.load_state_dict(state)


class IterableText(IterableDataset[Pair]):
    """Pairs of tokens [T] and the tokens that follow each of them [T], both int64."""

    # A row may be longer than a state may be. So the state is that before the row, with the tokens that were left over
    # of the rows before, and how many blocks of both were given.

    def __init__(self, found: Any, tokenizer: Any, context: int, column: str, folders: Sequence[Path] = ()) -> None:
        """``found``: Hugging Face's iterable dataset with the column; ``folders``: as of ``Rows``."""
        self._found, self._tokenizer, self._context, self._column = found, tokenizer, context, column
        self._folders = folders
        self._before: Any = None  # the dataset's state before the row that is given; None: none was begun
        self._left: list[int] = []  # tokens of the rows before that one
        self._given = 0  # blocks of those and the row's tokens

    @property
    def contents(self) -> str:
        return contents_of(self._folders)

    def __iter__(self) -> Iterator[Pair]:
        given, self._given = self._given, 0
        rows, place = iter(self._found), 0
        while True:
            self._before = self._found.state_dict()
            if (row := next(rows, None)) is None:
                break
            tokens = [*self._left, *next(tokens_of([row[self._column]], self._tokenizer, place))]
            blocks, place = max(0, (len(tokens) - 1) // self._context), place + 1
            for block in range(given, blocks):
                first, self._given = block * self._context, block + 1
                found = torch.tensor(tokens[first : first + self._context + 1])
                yield found[:-1], found[1:]
            self._left, self._given, given = tokens[blocks * self._context :], 0, 0
        self._before, self._left = None, []

    def set_epoch(self, epoch: int) -> None:
        self._found.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"before": self._before, "left": torch.tensor(self._left, dtype=torch.int32), "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["before"] is not None:
            self._found.load_state_dict(state["before"])
        self._left, self._given = state["left"].tolist(), state["given"]

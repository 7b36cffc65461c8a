"""Hugging Face datasets from local files: ``dataset = "culm.datasets.hf:rows"``, or ``"culm.datasets.hf:text"``.

Nothing is downloaded: a run has the same samples on every node, whatever a hub has by then.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from culm.datasets.tokens import Blocks
from culm.pipeline.errors import JobError
from culm.pipeline.text import closest
from culm.pipeline.user_code.fingerprint import contents_of, digest_of_file

try:
    import datasets
except ImportError as missing:
    raise JobError("datasets is not installed", "data.dataset", 'pip install "culm[hf]"') from missing

WHERE = "data.args"
BUILDERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text", ".arrow": "arrow"}
Columns = str | Sequence[str]


def rows(path: str | Sequence[str], input: Columns, target: Columns, split: str | None = None) -> "Rows":  # noqa: A002
    """Rows as they are. Raises JobError.

    ``path``: a folder that ``save_to_disk`` wrote, or files of one kind: .json, .jsonl, .csv, .parquet, .arrow, .txt
    ``input``, ``target``: the column that is one, or a list of columns, which make it a dict
    ``split``: of a folder that has several
    """
    found = opened(path, split)
    wanted = columns_of(found, path, input, target)
    return Rows(found.with_format("torch", columns=wanted), input, target, folders_of(path))


def text(
    path: str | Sequence[str], tokenizer: str, context: int, column: str = "text", split: str | None = None
) -> Blocks:
    """A column of text as tokens, end to end, in blocks: see ``culm.datasets.tokens``. Raises JobError.

    ``tokenizer``: a folder that transformers' ``AutoTokenizer`` loads. After each row comes its end-of-sequence token,
    if it has one. Every node makes the tokens when it opens the dataset; large texts are better written to a file once.
    """
    made, found = tokenizer_of(tokenizer), opened(path, split)
    columns_of(found, path, column)
    tokens = np.fromiter(chain.from_iterable(tokens_of(found[column], made)), np.int64)
    return Blocks([tokens], context, folders_of(path, tokenizer))


def tokenizer_of(folder: str) -> Any:
    """Raises JobError."""
    from transformers import AutoTokenizer  # a second's worth of imports, which rows do without

    if not Path(folder).is_dir():
        raise JobError(f"no tokenizer at {Path(folder).absolute()}", WHERE, "name a folder that AutoTokenizer loads")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


class Rows(Dataset[tuple[Any, Any]]):
    """Pairs of (input, target), each a tensor, or a dict of tensors by column."""

    def __init__(self, found: Any, input: Columns, target: Columns, folders: Sequence[Path]) -> None:  # noqa: A002
        """``found``: a dataset that gives torch's tensors; ``folders``: that it lies in, if it is in no file."""
        self._found, self._input, self._target, self._folders = found, input, target, folders

    @property
    def contents(self) -> str:
        """A hash of the folders: nodes compare it, beside some of the samples (rule 23)."""
        return contents_of(self._folders)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        row = self._found[index]
        return part(row, self._input), part(row, self._target)


def part(row: Mapping[str, torch.Tensor], columns: Columns) -> Any:
    """The column, or a dict of them."""
    return row[columns] if isinstance(columns, str) else {name: row[name] for name in columns}


def columns_of(found: Any, path: str | Sequence[str], *wanted: Columns) -> list[str]:
    """The names, each once. Raises JobError for one that the dataset does not have."""
    names = list(dict.fromkeys(name for columns in wanted for name in _names(columns)))
    if odd := [name for name in names if name not in (found.column_names or names)]:
        mend = closest(odd[0], found.column_names) or "name one that it has"
        raise JobError(f"{path} has no column {odd[0]!r}", WHERE, mend)
    return names


def _names(columns: Columns) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def tokens_of(texts: Any, tokenizer: Any, first: int = 0) -> Iterator[list[int]]:
    """Of each text, with the end-of-sequence token. ``first``: the number of the first row, for errors."""
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    for place, each in enumerate(texts, first):
        if not isinstance(each, str):
            raise JobError(f"row {place} has {str(each)[:40]!r} in place of text", WHERE, "name a column of text")
        yield [*tokenizer(each, add_special_tokens=False, verbose=False)["input_ids"], *end]


def folders_of(*paths: Columns) -> list[Path]:
    """Those that are folders: files are part of the identity as arguments of the job."""
    return [Path(path) for each in paths for path in _names(each) if Path(path).is_dir()]


def _cache_of(files: Sequence[str]) -> str:
    """Where what was read of these files is kept, by their contents: datasets goes by their times and sizes."""
    digest = hashlib.sha256(b"".join(digest_of_file(Path(file)) for file in files))
    return str(Path(datasets.config.HF_DATASETS_CACHE) / f"culm-{digest.hexdigest()[:32]}")


def opened(path: str | Sequence[str], split: str | None, iterable: bool = False) -> Any:
    """Hugging Face's dataset, map-style or iterable. Raises JobError."""
    files = [path] if isinstance(path, str) else list(path)
    try:
        if len(files) == 1 and Path(files[0]).is_dir():
            found: Any = datasets.load_from_disk(files[0])
        else:
            if lacking := [file for file in files if not Path(file).is_file()]:
                raise JobError(
                    f"there is no file {Path(lacking[0]).absolute()}", WHERE, "name files that every node has"
                )
            kinds = {BUILDERS.get(Path(file).suffix, "") for file in files}
            if len(kinds) != 1 or "" in kinds:
                mend = f"name a folder that save_to_disk wrote, or files of one kind: {', '.join(BUILDERS)}"
                raise JobError(f"{path} cannot be read", WHERE, mend)
            kept = {} if iterable else {"cache_dir": _cache_of(files)}
            found = datasets.load_dataset(kinds.pop(), data_files=files, split="train", streaming=iterable, **kept)
    except JobError:
        raise
    except Exception as error:  # of many kinds, by what is wrong with a file
        mend = "name a folder that save_to_disk wrote, or files that datasets reads"
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise JobError(f"{path} cannot be read: {said}", WHERE, mend) from error
    if split is not None and not isinstance(found, datasets.DatasetDict):
        raise JobError(f"{path} has no splits", WHERE, "leave split out, or name a folder that has several")
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            said = f"it has the splits {', '.join(found)}"
            raise JobError(f"{path} has no split {split!r}", WHERE, f"set split: {said}")
        found = found[split]
    return found.to_iterable_dataset() if iterable and hasattr(found, "to_iterable_dataset") else found

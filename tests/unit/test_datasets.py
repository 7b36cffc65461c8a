"""The datasets that a job can name: which tokens a block has, and what is wrong with a file."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import tokenizers
import torch
import transformers

from culm.datasets import hf, hf_iterable, tokens
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, with_values
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.samples import samples_of
from tests.unit.exactness import ADAMW, gives_the_plain_loops_bits, make_job


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def written(folder: Path, name: str, row: Any, dtype: str = "uint16") -> str:
    path = folder / name
    if path.suffix == ".npy":
        np.save(path, np.asarray(row, dtype))
    else:
        np.asarray(row, dtype).tofile(path)
    return str(path)


# ---- tokens in files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int64"])
@pytest.mark.parametrize("name", ["train.bin", "train.npy"])
def test_blocks_are_the_tokens_one_after_the_other(tmp_path: Path, name: str, dtype: str) -> None:
    found = tokens.blocks(written(tmp_path, name, range(23), dtype), 5, dtype)
    assert len(found) == 4, "22 tokens have one that follows them"
    x, y = found[3]
    assert (x.dtype, y.dtype) == (torch.int64, torch.int64)
    assert (x.tolist(), y.tolist()) == ([15, 16, 17, 18, 19], [16, 17, 18, 19, 20])
    with pytest.raises(IndexError):
        found[4]


def test_no_block_has_the_end_of_one_file_and_the_beginning_of_another(tmp_path: Path) -> None:
    files = [written(tmp_path, f"{i}.bin", range(100 * i, 100 * i + size)) for i, size in enumerate((7, 2, 11))]
    found = tokens.blocks(files, 3)
    assert [x.tolist() for x, _ in (found[i] for i in range(len(found)))] == [
        [0, 1, 2],
        [3, 4, 5],
        [200, 201, 202],
        [203, 204, 205],
        [206, 207, 208],
    ]


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.truncate(1 << 36)  # 64 GiB
    x, _ = tokens.blocks(str(path), 1024)[20_000_000]
    assert not x.any()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"files": "no.bin"}, "/no.bin cannot be read: No such file or directory; name a file"),
        ({"files": []}, "files is empty"),
        ({"files": "long.npy"}, "long.npy has uint64 [3]; write one row of whole numbers: uint8"),
        ({"context": 0}, "context is 0; give the number of tokens"),
        ({"context": 30}, "the files have 23 tokens, and a sample takes 31; name a longer file"),
        ({"dtype": "float32"}, "dtype is 'float32'; it may be uint8"),
        ({"dtype": "int64"}, "has 46 bytes, no whole number of int64"),
        ({"files": "two.npy"}, "two.npy has float64 [2, 2]; write one row of whole numbers"),
        ({"files": "bad.npy"}, "bad.npy cannot be read"),
    ],
)
def test_what_is_wrong_with_tokens_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "train.bin", range(23))
    np.save(tmp_path / "two.npy", np.ones((2, 2)))
    np.save(tmp_path / "long.npy", np.ones(3, np.uint64))
    (tmp_path / "bad.npy").write_text("no array")
    with pytest.raises(JobError, match=r"^data\.args: ") as error:
        tokens.blocks(**{"files": "train.bin", "context": 5, **arguments})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("size", "as_written", "as_read", "said"),
    [
        (50_257, "int32", "uint16", 'every second number is 0: it looks like int32; give dtype = "int32"'),
        (3, "int32", "uint16", "every second number is 0: it looks like int32"),
        (50_257, "int64", "uint16", "the last 2 of every 4 numbers are 0: it looks like int64"),
        (128_000, "uint32", "uint16", "every second number is at most 3: it looks like int32"),
        (128_000, "int64", "uint16", "the last 2 of every 4 numbers are 0: it looks like int64"),
        (50_257, "int64", "int32", "every second number is 0: it looks like int64"),
        (50_257, "int32", "uint8", "the last 2 of every 4 numbers are 0: it looks like int32"),
        (200, "uint16", "uint8", "every second number is 0: it looks like uint16"),
    ],
)
def test_a_file_of_wider_numbers_is_refused(
    tmp_path: Path, size: int, as_written: str, as_read: str, said: str
) -> None:
    drawn = np.random.default_rng(0).integers(0, size, 4096)
    path = written(tmp_path, "train.bin", drawn, as_written)
    with pytest.raises(JobError) as error:
        tokens.blocks(path, 5, as_read)
    assert f"train.bin is read as {as_read}, and {said}" in str(error.value)
    x, _ = tokens.blocks(path, 5, as_written)[0]
    assert x.tolist() == drawn[:5].tolist()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32"])
@pytest.mark.parametrize("kind", ["few", "zeros", "padded", "alternating"])
def test_an_honest_file_is_taken(tmp_path: Path, dtype: str, kind: str) -> None:
    drawn = np.random.default_rng(0).integers(0, 4, 4096)
    rows = {
        "few": drawn,
        "zeros": np.zeros(4096),
        "padded": np.where(np.arange(4096) % 1024 < 2, 7, 0),  # short samples in long blocks
        "alternating": np.where(np.arange(4096) % 2, drawn, 1),
    }
    assert len(tokens.blocks(written(tmp_path, "train.bin", rows[kind], dtype), 5, dtype)) == 819


def test_tokens_that_a_layer_cannot_take_are_named_with_their_file(tmp_path: Path) -> None:
    job = job_of(
        "culm.datasets.tokens:blocks", {"files": written(tmp_path, "train.bin", range(100, 160)), "context": 5}
    )
    with pytest.raises(JobError, match="index out of range") as error:
        check_job(job)
    assert "train.bin as uint16" in str(error.value)
    assert "the input has whole numbers from 1" in str(error.value)


# ---- Hugging Face ---------------------------------------------------------------------------------------------------

TABLE = {"x": [[float(i), 1.0] for i in range(6)], "mask": [[1, 0]] * 6, "label": list(range(6)), "name": ["a"] * 6}


def saved(folder: Path, kind: str) -> str:
    found = datasets.Dataset.from_dict(TABLE)
    path = folder / f"rows.{kind}"
    if kind == "folder":
        found.save_to_disk(path)
    elif kind == "splits":
        datasets.DatasetDict({"train": found, "test": found.select([5])}).save_to_disk(path)
    elif kind == "parquet":
        found.to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return str(path)


@pytest.mark.parametrize("kind", ["folder", "parquet", "jsonl"])
def test_rows_come_as_tensors_by_column(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, kind)
    x, label = hf.rows(path, "x", "label")[4]
    assert (x.tolist(), label.item()) == ([4.0, 1.0], 4)
    inputs, targets = hf.rows(path, ["x", "mask"], ["label"])[2]
    assert {name: tensor.tolist() for name, tensor in inputs.items()} == {"x": [2.0, 1.0], "mask": [1, 0]}
    assert {name: tensor.item() for name, tensor in targets.items()} == {"label": 2}


def test_a_split_is_named_where_there_are_several(tmp_path: Path) -> None:
    path = saved(tmp_path, "splits")
    assert len(hf.rows(path, "x", "label", split="test")) == 1
    with pytest.raises(JobError, match=r"has no split None; set split: it has the splits train, test"):
        hf.rows(path, "x", "label")


@pytest.mark.parametrize(
    ("path", "arguments", "said"),
    [
        ("rows.jsonl", {"input": "y"}, "has no column 'y'"),
        ("rows.jsonl", {"target": ["label", "lable"]}, "has no column 'lable'; did you mean label?"),
        ("none.jsonl", {}, "/none.jsonl; name files"),
        ("rows.odd", {}, "rows.odd cannot be read; name a folder that save_to_disk wrote"),
        ("folder", {}, "folder cannot be read"),
        ("torn.parquet", {}, "torn.parquet cannot be read"),
    ],
)
def test_what_is_wrong_with_rows_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, "jsonl")
    (tmp_path / "rows.odd").write_text("")
    (tmp_path / "torn.parquet").write_text("PAR1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(JobError, match=r"^data\.args: ") as error:
        hf.rows(**{"path": path, "input": "x", "target": "label", **arguments})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_was_written_again_at_the_same_time_is_read_again(tmp_path: Path) -> None:
    """As rsync and tar leave it: what was read before is kept by time and size."""
    path = tmp_path / "rows.jsonl"
    for label in (3, 4):
        path.write_text(json.dumps({"x": 1.0, "label": label}) + "\n")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert hf.rows(str(path), "x", "label")[0][1].item() == label


def test_a_split_of_what_has_none_is_a_mistake(tmp_path: Path) -> None:
    for kind in ("folder", "jsonl"):
        with pytest.raises(JobError, match="has no splits; leave split out"):
            hf.rows(saved(tmp_path, kind), "x", "label", split="train")


def test_a_folder_is_part_of_the_identity(tmp_path: Path) -> None:
    path = saved(tmp_path, "folder")
    args = {"path": path, "input": "x", "target": "label"}
    job = job_of("culm.datasets.hf:rows", args, "rows_layers")
    before = samples_of(job, "data", ModelSource(job).dataset())
    assert samples_of(job, "data", ModelSource(job).dataset()) == before
    shutil.rmtree(path)
    table = {**TABLE, "name": ["a"] * 5 + ["b"]}  # a column that the job does not read: only the files tell
    datasets.Dataset.from_dict(table).save_to_disk(path)
    assert samples_of(job, "data", ModelSource(job).dataset()) != before


def words(folder: Path) -> str:
    """A tokenizer of four words."""
    known = {"[END]": 0, "a": 1, "b": 2, "c": 3, "d": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[END]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=made, eos_token="[END]").save_pretrained(folder / "words")
    return str(folder / "words")


def test_text_becomes_blocks_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "a b c"}\n{"text": "d a"}\n{"text": "b b"}\n')
    found = hf.text(str(tmp_path / "text.jsonl"), words(tmp_path), 3)
    assert [x.tolist() for x, _ in (found[i] for i in range(len(found)))] == [[1, 2, 3], [0, 4, 1], [0, 2, 2]]
    assert found[2][1].tolist() == [2, 2, 0]
    with pytest.raises(JobError, match=r"no tokenizer at /.*/nothing; name a folder"):
        hf.text(str(tmp_path / "text.jsonl"), "nothing", 3)
    with pytest.raises(JobError, match="has no column 'txt'; did you mean text"):
        hf.text(str(tmp_path / "text.jsonl"), words(tmp_path), 3, column="txt")


# ---- read forward ---------------------------------------------------------------------------------------------------


def rows_of_text(folder: Path, first: str, second: str) -> list[str]:
    """Some are shorter than a block, one holds several, and one is empty."""
    for name, texts in ((first, ["a b c", "d", "", "a b c d a b c d a b"]), (second, ["c", "d d", "b a"])):
        (folder / name).write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    return [str(folder / first), str(folder / second)]


@pytest.mark.parametrize("kind", ["files", "folder"])
def test_text_that_is_read_forward_comes_in_the_same_blocks(tmp_path: Path, kind: str) -> None:
    path: Any = rows_of_text(tmp_path, "1.jsonl", "2.jsonl")
    if kind == "folder":
        datasets.load_dataset("json", data_files=path, split="train").save_to_disk(tmp_path / "rows")
        path = str(tmp_path / "rows")
    whole = hf.text(path, words(tmp_path), 3)
    wanted = [tuple(part.tolist() for part in whole[i]) for i in range(len(whole))]
    read = hf_iterable.text(path, words(tmp_path), 3)
    assert [tuple(part.tolist() for part in pair) for pair in read] == wanted
    assert [tuple(part.tolist() for part in pair) for pair in read] == wanted, "once more, in the next epoch"


def test_text_is_read_on_from_after_any_block(tmp_path: Path) -> None:
    args = (rows_of_text(tmp_path, "1.jsonl", "2.jsonl"), words(tmp_path), 2)
    whole = [x.tolist() for x, _ in hf_iterable.text(*args)]
    for given in range(1, len(whole) + 1):
        read = hf_iterable.text(*args)
        rows = iter(read)
        assert [next(rows)[0].tolist() for _ in range(given)] == whole[:given]
        on = hf_iterable.text(*args)
        on.load_state_dict(read.state_dict())
        assert [x.tolist() for x, _ in on] == whole[given:]


@pytest.mark.parametrize("name", ["rows", "text"])
def test_a_job_trains_on_what_is_read_forward(tmp_path: Path, name: str) -> None:
    if name == "rows":
        args: dict[str, Any] = {"path": saved(tmp_path, "parquet"), "input": "x", "target": "label"}
    else:
        args = {"path": rows_of_text(tmp_path, "1.jsonl", "2.jsonl"), "tokenizer": words(tmp_path), "context": 3}
    made = "rows_layers" if name == "rows" else "layers"
    job = with_values(job_of(f"culm.datasets.hf_iterable:{name}", args, made), {"data.shuffle": False})
    check_job(job)
    assert run_plain(job).losses
    with pytest.raises(JobError, match="has no column"):
        getattr(hf_iterable, name)(**{**args, "column" if name == "text" else "input": "y"})


# ---- training -------------------------------------------------------------------------------------------------------


def layers() -> list[torch.nn.Module]:
    return [torch.nn.Embedding(23, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 23), Turned()]


class Turned(torch.nn.Module):
    """Scores [B, T, V] as cross_entropy takes them, [B, V, T]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def job_of(dataset: str, args: dict[str, Any], layers: str = "layers") -> Job:
    job = make_job(2, 2, ADAMW, True, count=1)
    model = job.model.model_copy(update={"layers": f"tests.unit.test_datasets:{layers}", "args": {}})
    data = job.data.model_copy(update={"dataset": dataset, "args": args, "microbatch": 2})
    return job.model_copy(update={"model": model, "data": data})


def test_a_job_trains_on_tokens_whose_file_is_part_of_its_identity(tmp_path: Path) -> None:
    path = written(tmp_path, "train.bin", [(7 * i) % 23 for i in range(200)])
    job = job_of("culm.datasets.tokens:blocks", {"files": [path], "context": 5})
    check_job(job)
    gives_the_plain_loops_bits(job)
    before, weights = ModelSource(job).identity().parts["data"], run_plain(job).sha256
    written(tmp_path, "train.bin", [(5 * i) % 23 for i in range(200)])
    assert ModelSource(job).identity().parts["data"] != before
    assert run_plain(job).sha256 != weights


def rows_layers() -> list[torch.nn.Module]:
    return [torch.nn.Linear(2, 8), torch.nn.Linear(8, 6)]


def test_a_job_trains_on_rows(tmp_path: Path) -> None:
    args = {"path": saved(tmp_path, "parquet"), "input": "x", "target": "label"}
    job = job_of("culm.datasets.hf:rows", args, "rows_layers")
    check_job(job)
    gives_the_plain_loops_bits(job)

"""``culm checkpoint export --hf``: the folder has the tokenizer that the job names, or says that it has none."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from culm.pipeline.job import Job
from tests.hostile.commands import in_process
from tests.models.small import settings_of
from tests.unit.test_datasets import words
from tests.unit.test_hf import job_of
from tests.unit.test_plain_state import checkpoint_of


def changed(job: Job, section: str, **args: Any) -> Job:
    return job.model_copy(update={section: getattr(job, section).model_copy(update={"args": args})})


def model_at(folder: Path) -> str:
    config = transformers.AutoConfig.for_model("gpt2", **settings_of("gpt2"))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return str(folder)


def exported(named: Job, folder: Path, *more: str) -> Any:
    url = checkpoint_of(job_of("gpt2", 1), folder / "ck", named)
    return in_process("checkpoint", "export", url, "--hf", "out", *more, folder=folder)


def test_the_tokenizer_of_the_text_goes_with_the_model(tmp_path: Path) -> None:
    place = words(tmp_path)
    done = exported(changed(job_of("gpt2", 1), "data", tokenizer=place, path="x", context=8), tmp_path)
    assert (done.code, done.out) == (0, f"out: step 3, with the tokenizer of {place}\n")
    assert "tokenizer" not in done.err
    found: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert found("a b c")["input_ids"] == [1, 2, 3]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.isfinite(tensor).all() for tensor in loaded.state_dict().values())


def test_else_the_one_of_the_models_own_folder(tmp_path: Path) -> None:
    place = model_at(tmp_path / "words")
    words(tmp_path)  # beside the model
    done = exported(changed(job_of("gpt2", 1), "model", model=place), tmp_path, "--json")
    assert json.loads(done.out) == {"step": 3, "out": "out", "tokenizer": place}
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_where_there_is_none_a_line_says_how_to_add_it(tmp_path: Path) -> None:
    place = model_at(tmp_path / "model")
    done = exported(changed(job_of("gpt2", 1), "model", model=place), tmp_path)
    assert (done.code, done.out) == (0, "out: step 3\n")
    add = "AutoTokenizer.from_pretrained(...).save_pretrained('out') adds one"
    assert done.err.splitlines()[-1] == f"out has no tokenizer: no folder that the job names has a whole one; {add}"
    assert not list((tmp_path / "out").glob("tokenizer*"))


def test_one_that_cannot_be_loaded_is_told_of(tmp_path: Path) -> None:
    place = model_at(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    done = exported(changed(job_of("gpt2", 1), "model", model=place), tmp_path)
    assert done.code == 0, "the weights are there"
    assert f"{place}: the tokenizer cannot be loaded: " in done.err
    assert "out has no tokenizer" in done.err

"""What a job says of training and data, a row each: two of four nodes are killed; the weights are the plain loop's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers

from culm.pipeline.job import Job, with_values
from tests.models.test_matrix import STEPS, hugging_face, job_of, survives_and_ends_exact
from tests.unit import test_optimizers, test_schedules

SCHEDULES = test_schedules.SCHEDULES
OPTIMIZERS = [name for name in test_optimizers.KNOWN if name not in test_optimizers.OTHERS]
SMALL_LR = {"SGD": 0.05, "Adadelta": 1.0, "ASGD": 0.05, "Muon": 0.01}


def small(**settings: Any) -> Job:
    """Four layers with dropout and norms; ``settings``: ``section__key``."""
    layers, dataset = "tests.unit.exactness:layers", "tests.unit.exactness:dataset"
    job = job_of("small", 21, layers, dataset, "torch.nn.functional:cross_entropy", {"count": 4})
    return with_values(job, {key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_torch(name: str, tmp_path: Path) -> None:
    job = small(train__optimizer=f"torch.optim:{name}", train__optimizer_args={"lr": SMALL_LR.get(name, 1e-2)})
    if name == "Muon":
        matrices = {"model.layers": "tests.unit.test_optimizers:matrices"}
        job = with_values(job, matrices)
    survives_and_ends_exact(job, tmp_path / "run")


@pytest.mark.parametrize("name", ["lion_pytorch:Lion", "pytorch_optimizer:SOAP"])
def test_an_optimizer_of_another_package(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name.partition(":")[0])
    survives_and_ends_exact(small(train__optimizer=name, train__optimizer_args={"lr": 1e-3}), tmp_path / "run")


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule(name: str, tmp_path: Path) -> None:
    schedule, args = SCHEDULES[name]
    args = {**args, "total_steps": STEPS + 1} if "total_steps" in args else args
    settings: dict[str, Any] = {"train__schedule": schedule, "train__schedule_args": args}
    settings |= {"train__optimizer": "torch.optim:SGD", "train__optimizer_args": {"lr": 0.05, "momentum": 0.9}}
    survives_and_ends_exact(small(**settings), tmp_path / "run")


@pytest.mark.parametrize(
    "settings",
    [
        {"train.precision": "bf16-mixed"},
        {"train.precision": "bf16"},
        {"train.activation_checkpointing": True},
        {"train.precision": "bf16-mixed", "train.activation_checkpointing": True},
        {"train.average": 0.99},
        {"train.groups": "culm.optim:decay_matrices", "train.optimizer_args": {"lr": 1e-3, "weight_decay": 0.1}},
        {"train.schedule": "culm.optim:warmup_cosine", "train.schedule_args": {"warmup": 3, "steps": STEPS}},
        {"pipeline.schedule": "zb-h1"},
        {"train.metrics": {"accuracy": "culm.metrics:next_token_accuracy"}},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_how_a_language_model_is_trained(settings: dict[str, Any], tmp_path: Path) -> None:
    survives_and_ends_exact(with_values(hugging_face("gpt2", 22, "next_token"), settings), tmp_path / "run")


def test_a_job_that_evaluates(tmp_path: Path) -> None:
    job = hugging_face("llama", 23, "next_token")
    metrics = {"a": "culm.metrics:next_token_accuracy"}
    asked = {"dataset": job.data.dataset, "every": 3, "samples": 9, "metrics": metrics}
    survives_and_ends_exact(with_values(job, {f"evaluate.{k}": v for k, v in asked.items()}), tmp_path / "run")


# ---- data -----------------------------------------------------------------------------------------------------------


def on_tokens(dataset: str, args: dict[str, Any], **data: Any) -> Job:
    job = hugging_face("gpt2", 24, "each_token")
    return with_values(job, {"data.dataset": dataset, "data.args": args, **{f"data.{k}": v for k, v in data.items()}})


def texts(folder: Path) -> dict[str, Any]:
    """Files of text, and a tokenizer of the model's 99 words."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(99)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=made, eos_token="w2").save_pretrained(folder / "words")
    for part in range(2):
        rows = [" ".join(f"w{(i * j + part) % 99}" for j in range(5 + i % 17)) for i in range(60)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return {"path": [str(folder / f"{part}.jsonl") for part in range(2)], "tokenizer": str(folder / "words")}


@pytest.mark.parametrize("workers", [0, 2])
def test_tokens_in_a_file(workers: int, tmp_path: Path) -> None:
    np.asarray([(7 * i * i) % 99 for i in range(2000)], "uint16").tofile(tmp_path / "train.bin")
    args = {"files": [str(tmp_path / "train.bin")], "context": 8}
    survives_and_ends_exact(on_tokens("culm.datasets.tokens:blocks", args, workers=workers), tmp_path / "run")


@pytest.mark.parametrize("workers", [0, 1])
def test_text_that_is_read_forward(workers: int, tmp_path: Path) -> None:
    args = {**texts(tmp_path), "context": 8}
    job = on_tokens("culm.datasets.hf_iterable:text", args, workers=workers, shuffle=False)
    survives_and_ends_exact(job, tmp_path / "run")


def test_text_of_hugging_face(tmp_path: Path) -> None:
    args = {**texts(tmp_path), "context": 8}
    survives_and_ends_exact(on_tokens("culm.datasets.hf:text", args), tmp_path / "run")


@pytest.mark.parametrize("name", ["Rows", "Epochs", "loader", "MapStyle"])
def test_rows_in_order(name: str, tmp_path: Path) -> None:
    job = small(data__dataset=f"tests.unit.test_reading:{name}", data__shuffle=False)
    survives_and_ends_exact(job, tmp_path / "run")


def test_samples_that_draw_random_numbers(tmp_path: Path) -> None:
    survives_and_ends_exact(small(data__dataset="tests.unit.exactness:Augmented", data__workers=1), tmp_path / "run")

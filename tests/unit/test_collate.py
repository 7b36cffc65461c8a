"""Samples of different lengths, made one tensor by the job's own function: each microbatch has a shape of its own."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import Microbatches
from tests.unit.exactness import ADAMW, gives_the_plain_loops_bits, make_job

HERE = "tests.unit.test_collate"
Sample = dict[str, torch.Tensor]


class Lines(Dataset[Sample]):
    """Words as numbers, of 2 to 9 in a line, and what the line is about."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Sample:
        return {"words": torch.arange(2 + index % 8) + index % 5, "label": torch.tensor(index % 4)}


def padded(samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    words = pad_sequence([sample["words"] for sample in samples], batch_first=True)
    return words, torch.stack([sample["label"] for sample in samples])


def one_tensor(samples: Sequence[Sample]) -> torch.Tensor:
    return torch.stack([sample["label"] for sample in samples])


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, T, 8]
        return x.mean(dim=1)


def layers(count: int) -> list[Any]:
    mixing = partial(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=True)
    return [partial(nn.Embedding, 16, 8), *[mixing] * count, Mean, partial(nn.Linear, 8, 4)]


def job_of(stages: int, collate: str | None) -> Job:
    job = make_job(stages, 3, ADAMW, True, count=2)
    model = job.model.model_copy(update={"layers": f"{HERE}:layers"})
    data = job.data.model_copy(update={"dataset": f"{HERE}:Lines", "collate": collate})
    return job.model_copy(update={"model": model, "data": data})


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_microbatches_of_different_shapes_give_the_plain_loops_bits(stages: int) -> None:
    job = job_of(stages, f"{HERE}:padded")
    data = Microbatches(job, Lines())
    assert len({data.microbatch(step, 0, m)[0].shape for step in range(4) for m in range(3)}) > 1
    check_job(job)
    gives_the_plain_loops_bits(job)


def one_dict(samples: Sequence[Sample]) -> Sample:
    """As libraries of models have it: two keys, which a pair could be unpacked from."""
    return dict(zip(("words", "label"), padded(samples), strict=True))


def three(samples: Sequence[Sample]) -> tuple[torch.Tensor, ...]:
    return *padded(samples), torch.ones(len(samples))


NO_PAIRS = {
    None: "data.dataset: an item of the dataset is a dict with the keys words, label; let every item be a pair",
    "one_dict": r"data.collate, .*:one_dict: it returned a dict with the keys words, label; return a pair \(input, ta",
    "three": r"data.collate, .*:three: it returned 3 parts; return a pair",
    "one_tensor": "gives no microbatch",
    "nothing_like_it": "has no 'nothing_like_it'",
}


@pytest.mark.parametrize("collate", NO_PAIRS)
def test_what_gives_no_microbatch_is_refused_before_anything_starts(collate: str | None) -> None:
    with pytest.raises(JobError, match=NO_PAIRS[collate]):
        check_job(job_of(2, f"{HERE}:{collate}" if collate else None))


def in_inference_mode(samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """As where a frozen network makes the input."""
    words, labels = padded(samples)
    with torch.inference_mode():
        return torch.nn.functional.one_hot(words, 16).float(), labels


def layers_on_numbers(count: int) -> list[Any]:
    return [partial(nn.Linear, 16, 8), *layers(count)[1:]]


def test_what_was_made_in_inference_mode_trains_as_in_the_plain_loop() -> None:
    """A node ended in its second microbatch, whose input it has no need to copy: no backward may use such a tensor."""
    job = job_of(2, f"{HERE}:in_inference_mode")
    model = job.model.model_copy(update={"layers": f"{HERE}:layers_on_numbers"})
    gives_the_plain_loops_bits(job.model_copy(update={"model": model}))


BUFFER = torch.empty(8, 9, dtype=torch.int64)


def into_one_buffer(samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    words, labels = padded(samples)
    return BUFFER[: words.shape[0], : words.shape[1]].copy_(words), labels


def test_one_that_fills_the_memory_of_the_microbatch_before_is_refused_before_anything_starts() -> None:
    """A node that loads ahead would train on the next microbatch's samples with this one's labels."""
    with pytest.raises(JobError, match="fills the memory of one microbatch with the next one; return fresh tensors"):
        check_job(job_of(2, f"{HERE}:into_one_buffer"))

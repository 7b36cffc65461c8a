"""What a node says of an error of the job's own code: what, and where it came from."""

from typing import Any

import pytest
import torch

from culm.pipeline.user_code.imports import note
from culm.stage_server.compute.loading import Loading
from culm.stage_server.last_words import reason_of
from culm.stage_server.worker.work import Load
from tests.hostile.job_files import make_job

BAD = 5


class Torn:
    """One sample of it cannot be had."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if index == BAD:
            raise ValueError("corrupt record")
        return torch.zeros(4), 0


def test_a_sample_that_cannot_be_had_is_named_with_its_dataset_and_line() -> None:
    """It was said to be a forward that raised."""
    job = make_job(dataset=f"{__name__}:Torn", data="shuffle = false")
    loading = Loading(job, None)
    size = job.data.microbatch
    with pytest.raises(ValueError, match="corrupt record") as caught:
        loading.load(Load(0, 0, BAD // size))
    came_from = f"sample {BAD}, data.dataset, {__name__}:Torn, test_last_words.py, line "
    assert reason_of(caught.value).startswith(f"ValueError: corrupt record ({came_from}")


def test_an_error_of_torch_is_told_with_the_line_of_the_job_that_led_to_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert "(test_last_words.py, line " in reason_of(caught.value)


def test_a_note_of_several_lines_makes_no_second_one() -> None:
    """Hypothesis and others add such notes."""
    error = ValueError("no luck")
    error.add_note("falsifying example\nx = 1")
    assert reason_of(error) == "ValueError: no luck (falsifying example)"


def test_an_error_that_is_raised_again_has_its_notes_once() -> None:
    error = ValueError("no luck")
    for _ in range(3):
        note(error, "sample 5")
    assert reason_of(error) == "ValueError: no luck (sample 5)"

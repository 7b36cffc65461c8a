"""The job in the README: as short as it says, and it trains."""

import re
from pathlib import Path

import numpy as np
import pytest

from culm import optim
from culm.pipeline.errors import JobError
from culm.pipeline.job import parse_job, with_values
from culm.pipeline.user_code.check import check_job
from tests.unit.exactness import gives_the_plain_loops_bits

README = Path(__file__).parents[2] / "README.md"
TINY = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": 64}
TINY |= {"bos_token_id": 0, "eos_token_id": 0}


def test_it_has_thirty_lines_and_trains(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text(), re.S)
    assert len(text.splitlines()) <= 30
    job = parse_job(text)
    for name in ("train", "held_out"):
        np.random.default_rng(0).integers(0, 64, 400).astype("uint16").tofile(tmp_path / f"{name}.bin")
    files = {
        section: {"files": str(tmp_path / f"{name}.bin"), "context": 8}
        for section, name in (("data", "train"), ("evaluate", "held_out"))
    }
    small = {"job.steps": 3, "model.args": {"model": "gpt2", **TINY}, "pipeline.stages": 2, "pipeline.microbatches": 2}
    job = with_values(
        job,
        {
            **small,
            "data.args": files["data"],
            "evaluate.args": files["evaluate"],
            "evaluate.every": 2,
            "evaluate.samples": 10,
        },
    )
    check_job(job)
    with pytest.raises(JobError, match=r"evaluate\.args: .*nowhere"):
        check_job(with_values(job, {"evaluate.args": {"files": "nowhere.bin", "context": 8}}))
    gives_the_plain_loops_bits(job)


def test_the_schedule_rises_and_falls() -> None:
    factors = [optim.warmup_cosine(step, 4, 12, 0.1) for step in range(14)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[8] == pytest.approx(0.55)
    assert factors[12:] == [pytest.approx(0.1)] * 2
    assert optim.warmup_cosine(0, 0, 1) == 1.0

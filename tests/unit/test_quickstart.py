"""The job in the quick start: it trains, and a killed node changes no bit."""

import re
from pathlib import Path

import pytest

from culm.commands.run import read_job
from culm.local.kills import parse_kill
from culm.pipeline.job import with_values
from culm.pipeline.user_code.check import check_job
from tests.unit.exactness import gives_the_plain_loops_bits

PAGE = (Path(__file__).parents[2] / "docs/quickstart.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    return str(found)


def test_its_job_passes_the_trial_and_has_the_plain_loops_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waves.py").write_text(block("python"))
    (tmp_path / "waves.toml").write_text(block("toml"))
    monkeypatch.syspath_prepend(tmp_path)
    job = read_job(str(tmp_path / "waves.toml"), [])
    (kill,) = re.findall(r"^culm run .*--kill (\S+)", PAGE, re.M)
    assert parse_kill(kill, job.pipeline.stages, job).node == "n1"
    check_job(job)
    gives_the_plain_loops_bits(with_values(job, {"job.steps": 3}))

"""The job file: what is right round-trips, what is wrong is said in one line."""

from pathlib import Path

import pytest

from culm.pipeline.errors import JobError
from culm.pipeline.job import job_to_toml, load_job, parse_job

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["stdlib_gpt.toml", "stdlib_gpt_grid.toml", "digits_mlp.toml"])
def test_examples_round_trip(name: str) -> None:
    job = load_job(EXAMPLES / name)
    assert parse_job(job_to_toml(job)) == job


def test_overrides_are_toml_or_bare_words() -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=7", "model.args.width=32", "resilience.redundancy=off"])
    assert (job.job.steps, job.model.args["width"], job.resilience.redundancy) == (7, 32, "off")
    assert parse_job(job_to_toml(job)) == job, "also where a default goes with no other value"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("job.stepz=3", ["job.stepz", "unknown key", "did you mean steps?"]),
        ('job.steps="many"', ["job.steps", "integer"]),
        ("job.steps=0", ["job.steps", "0 is too small", "set it to 1 or more"]),
        ("resilience.redundancy=maybe", ["resilience.redundancy", "lazy"]),
        ("model.layers=nothing", ["model.layers", '"module:callable"']),
        ("jobs.steps=1", ["unknown key 'jobs'", "did you mean job?"]),
        ("steps", ["--set", "section.key=value"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(change: str, said: list[str]) -> None:
    with pytest.raises(JobError) as error:
        load_job(EXAMPLES / "digits_mlp.toml", [change])
    assert "\n" not in str(error.value)
    for words in said:
        assert words in str(error.value)


def test_a_budget_and_a_time_to_stop() -> None:
    at = "2026-12-01T08:00:00+01:00"
    for written in (f'job.stop_at="{at}"', f"job.stop_at={at}"):
        job = load_job(EXAMPLES / "digits_mlp.toml", [written, "job.budget=25"])
        assert (job.job.budget, job.job.stop_at, job.job.stops_at) == (25.0, at, 1_796_108_400.0)
        assert parse_job(job_to_toml(job)) == job
    for wrong, said in {"soon": "this is no time", "2026-12-01T08:00:00": "this time is of no zone"}.items():
        with pytest.raises(JobError, match=said):
            load_job(EXAMPLES / "digits_mlp.toml", [f'job.stop_at="{wrong}"'])


def test_a_section_whose_name_is_misspelt_is_named() -> None:
    """It was said to be missing, and the one that was there not mentioned."""
    text = (EXAMPLES / "digits_mlp.toml").read_text().replace("[pipeline]", "[pipline]")
    with pytest.raises(JobError, match=r"unknown key 'pipline'; did you mean pipeline\?"):
        parse_job(text)


def test_a_missing_file_and_bad_toml(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot be read"):
        load_job(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[job\n")
    with pytest.raises(JobError, match="not valid TOML"):
        load_job(tmp_path / "bad.toml")

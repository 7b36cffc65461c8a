"""A graph's run whose values are old goes on from a checkpoint only with the bits of one undisturbed run (rule 23)."""

from pathlib import Path

import pytest

from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.origins import of_another_job, resumable
from culm.pipeline.checkpoints.manifest import Found, Manifest
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, job_to_toml, load_job, with_values

EXAMPLE = Path(__file__).parents[2] / "examples" / "blocks.toml"
STALE = load_job(EXAMPLE, ["graph.staleness=1", "graph.refresh=4", "graph.fresh_at_end=2", "job.steps=12"])


def manifest_of(job: Job, step: int) -> Manifest:
    return Manifest(job=job.job.name, step=step, fingerprint="", loss=0.5, job_toml=job_to_toml(job))


def refusal(job: Job, step: int, *allowed: str, then: Job = STALE) -> str:
    """Of --resume from the checkpoint of this step, which the job ``then`` has written."""
    manifest = manifest_of(then, step)
    found = Found(step=step, url=f"/checkpoints/step-{step}", manifest=manifest, sha256="a" * 64)
    try:
        resumable(found, manifest, CoordinatorSettings(job=job, allow=frozenset(allowed)))
    except JobError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("key", ["staleness", "refresh", "fresh_at_end"])
def test_a_key_that_says_how_old_values_are_is_refused_by_its_name(key: str) -> None:
    """The run went on with values of another age, and ended with other bits."""
    old = getattr(STALE.graph, key)
    longer = with_values(STALE, {"job.steps": 24, f"graph.{key}": old + 1})
    assert f"graph.{key} is {old + 1} in this job, and {old} in the checkpoint's" in refusal(longer, 4)
    assert f"graph.{key} is {old + 1}" in of_another_job(manifest_of(STALE, 4), longer, frozenset())
    assert refusal(longer, 4, "train") == ""


def test_without_staleness_the_other_keys_change_no_bit() -> None:
    fresh = with_values(STALE, {"graph.staleness": 0, "job.steps": 24})
    changed = with_values(fresh, {"graph.refresh": 7, "graph.fresh_at_end": 0})
    assert [refusal(changed, step, then=fresh) for step in (3, 4, 23)] == ["", "", ""]


def test_with_more_steps_a_run_goes_on_from_before_the_fresh_epochs_at_the_end() -> None:
    """From step 12 of 12 the run went on to 24, though in a run of 24 steps epoch 11 is not fresh."""
    longer = with_values(STALE, {"job.steps": 24})
    assert refusal(longer, 8) == ""
    said = refusal(longer, 12)
    assert "the last epochs are fresh from step 22 on in this job, and were from 10 on" in said
    assert said.endswith("resume from step 8 or before, or let it differ with --allow train")
    assert "fresh from step 22 on" in of_another_job(manifest_of(STALE, 12), longer, frozenset())
    assert refusal(longer, 12, "train") == ""
    assert "fresh from step 15 on in this job" in refusal(with_values(STALE, {"job.steps": 17}), 16, then=longer)


def test_an_epoch_that_takes_old_values_is_no_place_to_go_on_from() -> None:
    longer = with_values(STALE, {"job.steps": 24})
    said = refusal(longer, 10)
    assert "epoch 10 takes values of epochs before, which are in no checkpoint" in said
    assert "a multiple of 4, or let it differ with --allow train" in said
    assert refusal(longer, 10, "train") == ""


@pytest.mark.parametrize("step", [4, 8, 10, 11, 12])
def test_the_very_job_goes_on_from_every_fresh_epoch(step: int) -> None:
    assert of_another_job(manifest_of(STALE, step), STALE, frozenset()) == ""

"""Backwards in two halves on real processes: a lost node between the halves changes no bit."""

from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("at", ["1W2", pytest.param("2B5", marks=pytest.mark.slow)])
def test_a_loss_between_the_halves_of_a_backward_changes_no_bit(at: str, tmp_path: Path) -> None:
    changes = ["job.steps=12", "pipeline.stages=3", "pipeline.microbatches=6", "pipeline.schedule=zb-h1"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    kills = [Kill(f"n{at[0]}", 6, at)]
    with LocalCluster(job, EXAMPLES, 3, kills, folder=tmp_path / "run", patience=20.0) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    assert [loss["node"] for loss in outcome.losses_of_nodes] == [f"n{at[0]}"]

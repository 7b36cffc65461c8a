"""Gradients that are shipped as far as they have come: after a loss only the microbatches since are done again."""

from pathlib import Path

from benchmarks.paced import job_file
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job

ROOT = Path(__file__).parents[2]
STAGES, MICROBATCHES = 3, 8


def test_an_heir_redoes_only_what_came_after_the_last_shipment(tmp_path: Path) -> None:
    settings = {"steps": 8, "stages": STAGES, "microbatches": MICROBATCHES, "redundancy": "lazy"}
    path = job_file(tmp_path, forward=0.005, backward=0.01, **settings)
    job = load_job(path, ["resilience.ship_every=2"])
    kills = [Kill("n1", 5, "1B7")]
    with LocalCluster(job, ROOT, STAGES, kills, folder=tmp_path / "run", patience=20.0) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    (loss,) = outcome.losses_of_nodes
    # Six microbatches were shipped, or four if the loss overtook them; of sixteen instructions the rest is spared.
    assert 0 < loss["redone"] <= 2 * 4

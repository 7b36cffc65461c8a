"""A job on an accelerator: a kill changes no bit there either. Runs where there is one."""

from pathlib import Path

import pytest
import torch

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job
from culm.pipeline.user_code.devices import device_of

EXAMPLES = Path(__file__).parents[2] / "examples"


needs_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


@needs_a_card
@pytest.mark.parametrize("redundancy", ["lazy", "eager"])
def test_a_kill_on_an_accelerator_changes_no_bit(redundancy: str, tmp_path: Path) -> None:
    changes = ["job.device=cuda", "job.steps=12", "pipeline.stages=3", f"resilience.redundancy={redundancy}"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    with LocalCluster(job, EXAMPLES, 3, [Kill("n1", 6, "1B2")], folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256


@needs_a_card
def test_standbys_in_the_hosts_memory_change_no_bit(tmp_path: Path) -> None:
    """One of them becomes the owner, and another one is seeded in its place."""
    changes = ["job.device=cuda", "job.steps=12", "pipeline.stages=3", "resilience.standby=host"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    with LocalCluster(job, EXAMPLES, 4, [Kill("n1", 6, "1B2")], folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert outcome.sha256 == run_plain(job).sha256


KILLS = [
    [],
    [Kill("n1", 5, "1B1")],
    [Kill("n2", 5, "sum")],
    [Kill("n0", 4, "send"), Kill("n3", 7, "p1/1B2")],
]


@needs_a_card
@pytest.mark.parametrize("kills", KILLS, ids=lambda kills: ", ".join(map(str, kills)) or "calm")
def test_a_grid_of_two_by_two_on_one_card_changes_no_bit(kills: list[Kill], tmp_path: Path) -> None:
    """Norms of the clipped gradient as well: a reducer takes them on the card, whoever's blocks it adds up."""
    changes = ["job.device=cuda", "job.steps=10", "pipeline.stages=2", "pipeline.pipelines=2"]
    changes += ["pipeline.microbatches=3", "data.microbatch=8", "train.clip_norm=0.5"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    with LocalCluster(job, EXAMPLES, 4, kills, folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    assert sorted(loss["node"] for loss in outcome.losses_of_nodes) == sorted(kill.node for kill in kills)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")
def test_a_machine_without_an_accelerator_says_so() -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.device=cuda"])
    with pytest.raises(JobError, match=r"no CUDA device.*job\.device|job\.device.*no CUDA device"):
        device_of(job)

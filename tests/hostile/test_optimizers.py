"""An optimizer whose copies would go on with other bits is refused by name; one that keeps plain data is copied."""

from pathlib import Path

import pytest

from culm.commands.run import try_out
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from tests.hostile.job_files import ROOT, make_job

REFUSED = {
    "ObjectsInList": "its state 'history' is a list of objects",
    "Attribute": "it keeps count beside its state",
    "EveryHundred": "it keeps count beside its state",
    "Scheduled": "a copy of it goes on otherwise",
    "Noisy": "random numbers",
    "Shares": "a copy of it goes on otherwise",
    "Couples": "it steps a layer otherwise when it has other layers' parameters as well",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_copy_would_miss_is_refused(name: str) -> None:
    """Before, weights were wrong after a repair or a resume, or lost at the very end."""
    with pytest.raises(JobError) as error:
        try_out(make_job(optimizer=f"tests.hostile.optimizers:{name}", optimizer_args=""))
    assert REFUSED[name] in str(error.value)
    assert str(error.value).startswith(f"train.optimizer: tests.hostile.optimizers:{name} ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["PlainData", "TensorsInList"])
def test_state_of_many_kinds_goes_through_seeding_and_a_checkpoint(name: str, tmp_path: Path) -> None:
    """A node dies, its stage is seeded anew, and another run goes on from a checkpoint: the plain loop's bits."""
    url = f"file://{tmp_path}/checkpoints"
    settings = {"optimizer": f"tests.hostile.optimizers:{name}", "optimizer_args": "lr = 0.05"}
    job = make_job(steps=8, more=f'[checkpoint]\nurl = "{url}"\nevery = 4', **settings)
    longer = make_job(steps=12, **settings)
    try_out(job)
    with LocalCluster(job, ROOT, 3, [Kill("n1", 2, "1F0")], folder=tmp_path / "one", patience=20.0) as cluster:
        assert train(cluster, lambda *_: None).sha256 == run_plain(job).sha256
    with LocalCluster(longer, ROOT, 2, folder=tmp_path / "two", patience=20.0, resume=url) as cluster:
        outcome = train(cluster, lambda *_: None)
    assert outcome.first_step == 8
    assert outcome.sha256 == run_plain(longer).sha256

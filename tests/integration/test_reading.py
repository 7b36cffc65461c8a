"""Real processes over an iterable dataset: whoever takes a reader's place, or resumes the run, reads on from there."""

from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.oracle.verification import compare
from culm.pipeline.job import Job, parse_job, with_values
from culm.terminal.outcome import Outcome, RunFailed

ROOT = Path(__file__).parents[2]
STEP = 2 * 3 * 4  # samples: pipelines x microbatches x samples in one

JOB = """
[job]
name = "rows"
steps = 8
[model]
layers = "tests.integration.read_forward:layers"
[data]
dataset = "tests.integration.read_forward:Rows"
args = {{ notes = "{notes}", differs_from = {differs_from} }}
microbatch = 4
shuffle = false
workers = {workers}
[train]
loss = "torch.nn.functional:cross_entropy"
optimizer = "torch.optim:AdamW"
[pipeline]
pipelines = 2
stages = 2
microbatches = 3
[checkpoint]
url = "{url}"
every = 4
"""


def job_of(folder: Path, workers: int = 0, differs_from: int = 1 << 30) -> Job:
    notes, url = folder / "notes", (folder / "kept").as_uri()
    return parse_job(JOB.format(notes=notes, url=url, workers=workers, differs_from=differs_from))


def run(job: Job, folder: Path, nodes: int, kills: list[Kill], resume: str = "") -> Outcome:
    with LocalCluster(job, ROOT, nodes, kills, "", False, folder, 20.0, resume) as cluster:
        return train(cluster, lambda status, events, outcome: None)


def test_a_reader_that_is_lost_is_replaced(tmp_path: Path) -> None:
    """First with processes that load ahead; then, resumed from the last checkpoint, without."""
    job, notes = job_of(tmp_path), tmp_path / "notes"
    half = with_values(job_of(tmp_path, workers=1), {"job.steps": 4})
    outcome = run(half, tmp_path / "run", 5, [Kill("n0", 3, "0F1")])
    assert compare("killed", run_plain(half), outcome) is None
    assert [lost["node"] for lost in outcome.losses_of_nodes] == ["n0"]

    notes.write_text("")
    resumed = run(job, tmp_path / "resumed", 5, [Kill("n3", 6, "p1/1B0")], resume=(tmp_path / "kept").as_uri())
    assert [lost["node"] for lost in resumed.losses_of_nodes] == ["n3"]
    read_on = [int(line) for line in notes.read_text().split()]
    assert 3 * STEP in read_on, "the step before the checkpoint is read once more, and none before it"
    assert resumed.sha256 == run_plain(job).sha256


def test_a_dataset_that_gives_processes_other_samples_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the dataset has given n\d other samples in step 4 than another node"):
        run(job_of(tmp_path, differs_from=4 * STEP + 5), tmp_path / "run", 4, [])

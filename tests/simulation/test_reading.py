"""Histories over an iterable dataset: every node that reads it comes to the samples of the step, from any bookmark."""

import random

import pytest

from culm.coordinator import bookmarks as told
from culm.coordinator import state as co
from culm.pipeline.bookmark import Bookmark
from culm.pipeline.checkpoints import bookmark_file
from culm.pipeline.errors import JobError
from culm.simulator.histories import simulated_dataset
from culm.simulator.histories.simulated_cluster import Cluster
from tests.simulation.test_everything import SOAK


def history(seed: int) -> Cluster:
    """Nodes are lost, alone and all at once, so that others read on, from commits' bookmarks and from checkpoints'."""
    draw = random.Random(seed)
    stages, pipelines = draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 2, 3])
    return Cluster(
        seed,
        stages=stages,
        layers=stages + draw.choice([0, 1]),
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([4, 8]),
        pipelines=pipelines,
        nodes=stages * draw.choice([1, 2]) if pipelines > 1 else stages,
        spares=draw.choice([0, 1]),
        disturb=draw.choice([2, 3, 4]),
        checkpoint_every=draw.choice([1, 2]),
        power_cuts=draw.choice([0, 1, 2]),
        outages=draw.choice([0, 0, 1]),
        storage=draw.choice([0, 0, 1]),
        left_steps=draw.choice([(), (2,)]),
        eager=draw.random() < 0.3,
        iterable=True,
    )


@pytest.mark.parametrize("hundred", range(100 if SOAK else 1))
def test_every_node_reads_the_samples_of_its_step(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + (100 if SOAK else 40)):
        assert history(seed).run().state.phase is co.Phase.DONE, f"seed {seed}"


def fails(seeds: range) -> bool:
    for seed in seeds:
        try:
            history(seed).run()
        except (AssertionError, JobError):
            return True
    return False


def test_a_bookmark_of_a_later_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rollback a node knows one that is ahead of where it reads."""
    monkeypatch.setattr(simulated_dataset, "bookmark_for", lambda step, known, read: known.newest)
    assert fails(range(100))


def test_a_bookmark_that_another_run_has_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a node writes none beside its own layer 0."""
    another = bookmark_file.to_bytes(Bookmark(version=1, of="", digest="", state=b"100000"))
    monkeypatch.setattr(bookmark_file, "to_bytes", lambda bookmark: another)
    assert fails(range(100))


def test_a_commit_that_tells_the_bookmark_of_another_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(state: co.State) -> Bookmark | None:
        found = plain(state)
        return found and Bookmark(version=max(1, found.version - 1), of="", digest=found.digest, state=found.state)

    plain = told.newest
    monkeypatch.setattr(told, "newest", newest)
    assert fails(range(100))


def test_a_dataset_that_gives_one_node_other_samples_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages read the step. The word of the second one differs, wherever it is."""
    digests = iter(range(1000))
    monkeypatch.setattr(simulated_dataset.Counting, "digest", lambda self, samples: str(next(digests)).encode())
    cluster = Cluster(0, stages=2, disturb=0, iterable=True)
    with pytest.raises(AssertionError, match="other samples in step 0"):
        cluster.run()

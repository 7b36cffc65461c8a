"""Which processes a local cluster starts."""

from pathlib import Path

from culm.local.cluster import LocalCluster
from culm.pipeline.job import load_job

BLOCKS = Path(__file__).parents[2] / "examples" / "blocks.toml"


def test_a_tensor_worker_that_has_ended_is_started_again_when_asked_for(tmp_path: Path) -> None:
    """``culm add`` said that it starts, and only nodes were started."""
    cluster = LocalCluster(load_job(BLOCKS, ["graph.workers=1"]), BLOCKS.parent, 0, folder=tmp_path)
    cluster.gone["w0"] = "it was drained, or its run is over"
    try:
        cluster.add_all(0)
        assert list(cluster.pids()) == ["w0"]
        assert cluster.gone == {}
    finally:
        cluster.close()


def test_a_tensor_worker_that_was_let_go_is_not_missed(tmp_path: Path) -> None:
    cluster = LocalCluster(load_job(BLOCKS, ["graph.workers=1"]), BLOCKS.parent, 0, folder=tmp_path)
    cluster.gone["w0"] = "it was drained, or its run is over"
    cluster.want_workers(0)
    assert cluster.gone == {}

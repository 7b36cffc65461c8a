"""Real processes: the storage of the samples is away while every node starts, and is back when they have to load."""

from pathlib import Path

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb

EXAMPLES = Path(__file__).parents[2] / "examples"

# The first dataset of every process cannot be made. A process that joins anew keeps its id.
MODULE = """
import os
from pathlib import Path
from culm.examples.digits_mlp import dataset

def away_at_first(folder: str):
    mark = Path(folder) / f"asked-{os.getpid()}"
    if not mark.exists():
        mark.touch()
        raise FileNotFoundError("the mount is not there yet")
    return dataset()
"""


def test_nodes_that_could_tell_no_samples_join_anew_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "mounted.py").write_text(MODULE)
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=6", "pipeline.stages=2"])
    plain = run_plain(job)
    data = job.data.model_copy(update={"dataset": "mounted:away_at_first", "args": {"folder": str(tmp_path)}})
    events: list[pb.ListEventsResponse] = []
    with LocalCluster(job.model_copy(update={"data": data}), tmp_path, 2, folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, new, outcome: events.extend(new))
        assert cluster.deaths == [], "a process that joins anew goes on"
    assert outcome.sha256 == plain.sha256
    kinds = [event.kind for event in events]
    assert kinds.count("joined") == 4
    assert "failed" not in kinds

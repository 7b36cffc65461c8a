"""Real processes that say that they have little memory: the run goes by what they say, and tensors go to disk."""

import json
import re
from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job, parse_job
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome
from tests.hostile.job_files import ROOT, job_text
from tests.integration.test_metrics import scrape

PATIENCE = 20.0  # on a busy machine a node may be slow to speak: streams tell of a kill, not silence
LITTLE = {"n0": {"CULM_MEMORY": "1000"}}


class Waits(Exception):
    """The run waits for memory."""


def test_a_node_with_too_little_memory_is_left_out(tmp_path: Path) -> None:
    job = parse_job(job_text())
    owners: list[str] = []

    def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        for event in events:
            if event.kind == "plan":
                owners.extend(owner for stage in json.loads(event.fields["stages"]) for owner in stage[2])

    with LocalCluster(job, ROOT, 3, (), "", True, tmp_path / "run", PATIENCE, environments=LITTLE) as cluster:
        outcome = train(cluster, note)
    assert set(owners) == {"n1", "n2"}
    assert outcome.sha256 == run_plain(job).sha256


def test_a_run_that_fits_nowhere_says_who_lacks_what(tmp_path: Path) -> None:
    def look(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        if "more memory" in status.detail:
            raise Waits(status.detail)

    job = parse_job(job_text())
    with (
        LocalCluster(job, ROOT, 2, (), "", True, tmp_path / "run", PATIENCE, environments=LITTLE) as cluster,
        pytest.raises(Waits, match=r"on 2 nodes n0 would need 0\.\d\d MB and has 0\.00 MB; add nodes"),
    ):
        train(cluster, look)


def test_an_heir_gets_tensors_that_lie_on_disk(tmp_path: Path) -> None:
    """Stage 1 is lost at its last backward: its neighbours have written all but the last microbatch's tensors.

    n3 has no folder for them, and keeps them in memory.
    """
    changes = ["job.steps=8", "pipeline.stages=4", "pipeline.microbatches=6", "data.microbatch=32"]
    job = load_job(ROOT / "examples" / "digits_mlp.toml", [*changes, "resilience.redundancy=lazy"])
    disk = tmp_path / "disk"
    disk.mkdir()
    common = {"CULM_METRICS": "127.0.0.1:0", "CULM_SPILL_ABOVE": "1"}
    environments = {f"n{i}": {**common, "CULM_SPILL_FOLDER": str(disk)} for i in range(3)}
    environments["n3"] = {**common, "CULM_SPILL_FOLDER": str(disk / "missing")}
    kills = [Kill("n1", 4, "1B5")]
    folder, examples = tmp_path / "run", ROOT / "examples"
    with LocalCluster(job, examples, 4, kills, "", False, folder, PATIENCE, environments=environments) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
        spilled = {
            name: sum(s.value for f in scrape(folder / f"{name}.log") for s in f.samples if "spilled" in s.name)
            for name in ("n0", "n2", "n3")
        }
    assert outcome.sha256 == run_plain(job).sha256
    (lost,) = outcome.losses_of_nodes
    assert (lost["node"], lost["stage"]) == ("n1", 1)
    assert lost["redone"] > 0
    assert spilled["n0"] > 0
    assert spilled["n2"] > 0
    assert spilled["n3"] == 0
    assert len(re.findall("cannot write kept tensors", (folder / "n3.log").read_text())) == 1
    assert list(disk.iterdir()) == []

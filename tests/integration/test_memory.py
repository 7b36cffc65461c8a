"""Real processes of which one says that it has little memory: the run goes by what they say."""

import json
from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import parse_job
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome
from tests.hostile.job_files import ROOT, job_text

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

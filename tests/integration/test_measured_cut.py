"""Real processes that measure their layers: the stages take about the same time, and no bit is another."""

import json
from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, parse_job
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome
from tests.hostile.job_files import ROOT, job_text
from tests.integration.wide_embedding import BLOCKS

PATIENCE = 20.0  # on a busy machine a node may be slow to speak: streams tell of a kill, not silence
MODEL = "tests.integration.wide_embedding"


def job_of(cut: str, layers: str = f"{MODEL}:layers") -> Job:
    text = job_text(layers=layers, dataset=f"{MODEL}:dataset", stages=2, steps=8, more=f'cut = "{cut}"')
    return parse_job(text.replace("microbatch = 4", "microbatch = 16"))


@pytest.fixture(scope="module")
def plain() -> PlainResult:
    return run_plain(job_of("parameters"))


def run(job: Job, folder: Path, kills: list[Kill] | None = None) -> tuple[Outcome, list[tuple[str, list[int]]]]:
    """The outcome; and of each plan the reason and how many layers each stage has."""
    plans: list[tuple[str, list[int]]] = []

    def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        for event in events:
            if event.kind == "plan":
                stages = json.loads(event.fields["stages"])
                plans.append((event.text, [end - first for first, end, *_ in stages]))

    with LocalCluster(job, ROOT, 2, kills or [], "", True, folder, PATIENCE) as cluster:
        outcome = train(cluster, note)
    return outcome, plans


def test_measured_times_cut_the_model_more_evenly_and_change_no_bit(plain: PlainResult, tmp_path: Path) -> None:
    by_parameters, uneven = run(job_of("parameters"), tmp_path / "parameters")
    by_times, even = run(job_of("measured"), tmp_path / "measured")
    assert by_parameters.sha256 == by_times.sha256 == plain.sha256
    assert [x.hex() for x in by_times.losses] == [x.hex() for x in plain.losses]
    assert uneven[0][1] == [1, BLOCKS + 1], "the embedding alone is a stage"
    assert "cut by measured times" in even[0][0]
    assert min(even[0][1]) >= 3, "each of the two stages has blocks that compute"


def test_a_lost_node_changes_no_bit_of_a_measured_run(plain: PlainResult, tmp_path: Path) -> None:
    outcome, plans = run(job_of("measured"), tmp_path / "run", [Kill("n1", 4, "backward")])
    assert outcome.sha256 == plain.sha256
    assert len({tuple(layers) for _, layers in plans}) == 1

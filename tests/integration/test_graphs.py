"""Real processes train on a graph: neither their number nor a lost one changes a bit, nor do chunks in files."""

from pathlib import Path

import pytest

from culm.graphs.chunk_index import file_of
from culm.graphs.cutting import write_chunks
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, load_job, with_values
from culm.pipeline.user_code.data import dataset_of
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 20.0  # on a busy machine a node may be slow to speak: streams tell of a kill, not silence
KINDS = {"gcn": "{ sizes = [16, 8, 4], dropout = 0.2 }", "gat": "{ sizes = [16, 8, 4], heads = 2, dropout = 0.2 }"}


def job_of(layers: str) -> Job:
    changes = ["job.steps=6", "graph.args.vertices=120", "graph.chunks=6", 'graph.partitioner="hash"']
    return load_job(
        EXAMPLES / "blocks.toml", [*changes, f"model.layers=culm.graphs:{layers}", f"model.args={KINDS[layers]}"]
    )


@pytest.fixture(scope="module")
def job() -> Job:
    return job_of("gcn")


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


def outcome_of(job: Job, servers: int, folder: Path, kills: list[Kill]) -> Outcome:
    with LocalCluster(job, EXAMPLES, servers, kills, "", False, folder, PATIENCE) as cluster:
        return train(cluster, lambda status, events, outcome: None)


def check(outcome: Outcome, plain: PlainResult) -> None:
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_the_number_of_servers_changes_no_bit(servers: int, job: Job, plain: PlainResult, tmp_path: Path) -> None:
    check(outcome_of(job, servers, tmp_path / "run", []), plain)


def test_a_lost_server_changes_no_bit(job: Job, plain: PlainResult, tmp_path: Path) -> None:
    outcome = outcome_of(job, 3, tmp_path / "run", [Kill("n1", 3, "backward")])
    check(outcome, plain)
    assert {loss["node"] for loss in outcome.losses_of_nodes} == {"n1"}, "each of its duties is told"


def test_attention_on_two_servers_of_which_one_is_lost(tmp_path: Path) -> None:
    job = job_of("gat")
    outcome = outcome_of(job, 2, tmp_path / "run", [Kill("n0", 3, "ship")])
    check(outcome, run_plain(job))
    assert {loss["node"] for loss in outcome.losses_of_nodes} == {"n0"}


def chunks_of(pid: int) -> set[str]:
    """The files of chunks that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(line.split()[-1]).name for line in lines if line.endswith(".safetensors")}


@pytest.mark.parametrize("kills", [[], [Kill("n1", 3, "backward")]])
def test_a_folder_of_chunks_gives_the_bits_of_the_graph_in_memory(
    kills: list[Kill], job: Job, plain: PlainResult, tmp_path: Path
) -> None:
    """Each chunk's file is mapped by one server, after a loss too: by the one that runs the chunk."""
    write_chunks(dataset_of(job), "hash", tmp_path / "chunks")
    found: dict[str, set[str]] = {}

    def look(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
        if status.phase == "done":
            found.update({name: chunks_of(pid) for name, pid in cluster.pids().items() if name in cluster.names})

    changes = {"graph.data": "culm.graphs.readers:chunks", "graph.args": {"path": str(tmp_path / "chunks")}}
    files = with_values(job, changes)
    with LocalCluster(files, EXAMPLES, 3, kills, "", False, tmp_path / "run", PATIENCE) as cluster:
        outcome = train(cluster, look)
    check(outcome, plain)
    assert {loss["node"] for loss in outcome.losses_of_nodes} == {kill.node for kill in kills}
    names = [name for mapped in found.values() for name in mapped]
    assert sorted(names) == [file_of(number) for number in range(6)]
    assert len(found) == 3 - len(kills)

"""What real nodes tell beside their work: the lines of their logs, which outlive them, and what they take."""

import os
import re
import signal
from html import unescape
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from culm.__main__ import main
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect

PAGE = """
from culm.ui.screens import {page}
from culm.ui.source import Live
{page}.show(Live({address!r}))
"""
EXAMPLES = Path(__file__).parents[2] / "examples"


def events_of(address: str) -> list[pb.ListEventsResponse]:
    channel, stub = connect(address)
    with channel:
        return list(stub.ListEvents(pb.ListEventsRequest(from_sequence=1), timeout=10.0))


def words(app: AppTest) -> str:
    """All that the page writes as HTML, without the markup."""
    app.run()
    assert not app.exception
    assert not app.error
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", each.proto.body)) for each in app.get("html"))


def test_the_last_lines_of_a_lost_node_stay_and_all_tell_what_they_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=400", "pipeline.stages=2"])
    seen: dict[str, pb.ListLogLinesResponse] = {}
    told: dict[str, pb.Resources] = {}

    def lines(stub: CoordinatorStub, node: str) -> pb.ListLogLinesResponse:
        return stub.ListLogLines(pb.ListLogLinesRequest(node=node), timeout=10.0)

    def look(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        for node in status.nodes:
            if node.HasField("resources"):
                told[node.id] = node.resources
        if len(told) == 3 and status.step >= 10 and "before" not in seen and lines(stub, "n1").lines:
            seen["before"] = lines(stub, "n1")
            os.kill(cluster.pids()["n1"], signal.SIGKILL)
        elif "before" in seen and "after" not in seen and "n1" not in {node.id for node in status.nodes}:
            seen["after"] = lines(stub, "n1")
            assert main(["logs", "--coordinator", cluster.address, "--node", "n1"]) == 0

    with LocalCluster(job, EXAMPLES, 3, folder=tmp_path / "run", respawn=False) as cluster:
        train(cluster, lambda status, new, outcome: None, look)
        lost = next(e for e in events_of(cluster.address) if e.kind == "lost")
        nodes = words(AppTest.from_string(PAGE.format(page="nodes", address=cluster.address), default_timeout=60.0))
        incident = AppTest.from_string(PAGE.format(page="incidents", address=cluster.address), default_timeout=60.0)
        incident.query_params["incident"] = str(lost.sequence)
        said = words(incident)
        log = (tmp_path / "run" / "n1.log").read_text()
        assert main(["logs", "--coordinator", cluster.address, "--node", "n7"]) == 2
    before, after = seen["before"].lines, seen["after"].lines
    assert before
    assert list(after)[: len(before)] == list(before)
    assert all(kept.node == "n1" and kept.line.text in log for kept in after), "what the log itself says"
    assert all(kept.line.text in nodes for kept in after)
    assert "the last log lines of n1" in said
    assert after[-1].line.text in said
    printed = capsys.readouterr()
    assert all(kept.line.text in printed.out for kept in after)
    assert "no log lines of 'n7'" in printed.err
    assert set(told) == {"n0", "n1", "n2"}
    assert all(0 < seen.resident_bytes < seen.memory_bytes and seen.processors > 0 for seen in told.values())
    assert all(seen.cpu_seconds > 0.0 and not seen.accelerator_bytes for seen in told.values())

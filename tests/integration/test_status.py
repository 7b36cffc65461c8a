"""``culm status`` and ``culm events`` on a cluster that has lost a node."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from culm.__main__ import main
from culm.commands import cost
from culm.commands.status import as_json, audits_in_words, exposure_lines
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_how_long_stages_were_exposed_is_told_from_the_same_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=60", "pipeline.stages=2"])
    events: list[pb.ListEventsResponse] = []
    killed: list[int] = []

    def kill_once(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step >= 5 and not killed:
            killed.append(cluster.pids()["n1"])
            os.kill(killed[0], signal.SIGKILL)

    with LocalCluster(job, EXAMPLES, 3, folder=tmp_path / "run") as cluster:
        train(cluster, lambda status, new, outcome: events.extend(new), kill_once)
        assert main(["status", "--coordinator", cluster.address, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert main(["status", "--coordinator", cluster.address]) == 0
        words = capsys.readouterr().out
    windows: dict[str, list[float]] = {}
    for event in events:
        if event.kind == "hot":
            windows.setdefault(event.fields["stage"], []).append(float(event.fields["exposure_ms"]) / 1e3)
    assert set(windows) == {"0", "1"}, "it stood by for one stage and owned the other"
    assert told["exposure"] == {"0": 0.0, "1": 0.0}
    for stage, seconds in windows.items():
        expected = {"count": len(seconds), "longest_seconds": max(seconds), "total_seconds": sum(seconds)}
        assert told["exposure_windows"][stage] == pytest.approx(expected)
        assert "so far, example prices" in words
        assert told["coordinator"] == "local"
        assert f"stage {stage} was without a hot standby once, for {seconds[0]:.1f} s in all" in words


def test_a_stage_that_is_exposed_is_named() -> None:
    status = pb.GetStatusResponse(exposure={0: 0.0, 3: 1.25})
    assert exposure_lines(status) == ["stage 3 has been without a hot standby for 1.2 s"]


def test_what_audits_came_to_is_told_in_a_line() -> None:
    calm = pb.AuditFigures(share=0.1, forwards=240, compared=48)
    words = "audits (10% of forwards): 240 forwards run again, 48 states of layers compared"
    assert audits_in_words(calm) == f"{words}: nothing differed"
    calm.differed = 1
    unknown = "nobody can say yet which node is right"
    assert audits_in_words(calm) == f"{words}; 1 step differed: {unknown} (culm events --kind differed)"
    calm.differed, calm.found["n1"] = 3, 2
    found = "n1 was found 2 times to compute wrongly"
    assert audits_in_words(calm) == f"{words}; 3 steps differed: {found} (culm events --kind differed)"
    told = {"share": 0.1, "forwards": 240, "compared": 48, "differed": 3, "found": {"n1": 2}}
    assert as_json(pb.GetStatusResponse(audits=calm), pb.GetCostResponse())["audits"] == told
    assert as_json(pb.GetStatusResponse(), pb.GetCostResponse())["audits"] is None


def test_tensor_workers_are_told_of_a_graph_server() -> None:
    work = pb.TensorWorkers(workers=2, waiting=1, done=7, repeated=1, seconds=3.5)
    server = pb.NodeStatus(id="n0", resources=pb.Resources(tensor_workers=work))
    status = pb.GetStatusResponse(nodes=[server, pb.NodeStatus(id="n1")], workers_wanted=3, workers_reason="they wait")
    told: Any = as_json(status, pb.GetCostResponse())
    assert (told["workers_wanted"], told["workers_reason"]) == (3, "they wait")
    found = {"workers": 2, "waiting": 1, "done": 7, "repeated": 1, "seconds": 3.5}
    assert [node["tensor_work"] for node in told["nodes"]] == [found, None]
    fixed: Any = as_json(pb.GetStatusResponse(), pb.GetCostResponse())
    assert fixed["workers_wanted"] is None


def test_a_cost_that_is_not_known_yet_is_no_zero() -> None:
    figures = pb.GetCostResponse(dollars=math.nan)
    assert cost.in_words(figures) == [
        "not known yet: the coordinator waits for Redis to read what the run has cost before"
    ]
    assert cost.as_json(figures)["dollars"] is None
    assert as_json(pb.GetStatusResponse(cost=math.nan), figures)["cost"] is None

"""The logs of real processes as JSON: each line says whose it is, and where that stood."""

import json
from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_cluster_logs_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CULM_LOG_FORMAT", "json")
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=20", "pipeline.stages=2"])
    with LocalCluster(job, EXAMPLES, 2, folder=tmp_path / "run") as cluster:
        train(cluster, lambda status, new, outcome: None)
    for name in ("coordinator", "n0", "n1"):
        text = (tmp_path / "run" / f"{name}.log").read_text()
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        assert lines, text
        assert all(line["time"] and line["level"] and line["logger"] and line["message"] for line in lines)
        who = "coordinator" if name == "coordinator" else "node"
        assert {line["service"] for line in lines} == {"coordinator" if name == "coordinator" else "stage"}
        assert name == "coordinator" or {line.get(who) for line in lines} == {name}
        steps = [line["step"] for line in lines if "step" in line]
        assert steps == sorted(steps)
        assert steps[-1] == 20, "the last line tells the last step"
        assert lines[-1]["generation"] >= 1

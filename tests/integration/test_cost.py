"""Money on a real cluster: live figures are the replayed log's, through a lost node and a new coordinator."""

import gzip
import json
import os
import signal
from pathlib import Path

import pytest

from culm.__main__ import main
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.ui.recorded import read_log

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_replayed_log_gives_the_live_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=80", "pipeline.stages=2"])
    victims = [(20, "n1"), (50, "coordinator")]
    to_come: list[pb.GetCostResponse] = []

    def kill(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if len(victims) == 1:  # between the two
            to_come.append(stub.GetCost(pb.GetCostRequest()))
        if victims and status.step >= victims[0][0]:
            os.kill(cluster.pids()[victims.pop(0)[1]], signal.SIGKILL)

    zones = {f"n{i}": {"CULM_ZONE": "ab"[i % 2], "CULM_REGION": "r"} for i in range(3)}
    with LocalCluster(job, EXAMPLES, 3, folder=tmp_path / "run", environments=zones) as cluster:
        train(cluster, lambda status, new, outcome: None, kill)
        assert main(["cost", "--coordinator", cluster.address, "--json"]) == 0
        live = json.loads(capsys.readouterr().out)
        assert main(["events", "--coordinator", cluster.address, "--json"]) == 0
        log = tmp_path / "run.jsonl"
        log.write_text(capsys.readouterr().out)
        assert main(["events", "--coordinator", cluster.address, "--kind", "lost,done"]) == 0
        some = capsys.readouterr().out.splitlines()
    assert not victims
    assert [line.split()[1] for line in some] == ["lost", "done"]
    assert main(["cost", "--log", str(log), "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed == live
    assert live["samples"] == 80 * job.samples_per_step
    assert [(x["kind"], x["node"]) for x in live["interruptions"]] == [("lost", "n1"), ("coordinator", "")]
    assert live["crossing_bytes"] > 0
    assert live["transfer_dollars"] == pytest.approx(live["crossing_bytes"] / 1e9 * 0.02)
    assert live["dollars"] == pytest.approx(sum(n["dollars"] for n in live["nodes"]) + live["transfer_dollars"])
    assert live["dollars"] > 0
    assert not live["unpriced"]
    assert live["forecast"]["why"] == "the run is done"
    last = to_come[-1]
    assert last.forecast.steps_left < 80
    assert last.forecast.seconds.low <= last.forecast.seconds.expected <= last.forecast.seconds.high
    assert last.one_more.node in ("n0", "n1", "n2")
    assert last.one_more.dollars_per_hour > 0.0


WHOLE = '{"sequence": 1, "time": 1.0, "kind": "x", "text": "x", "step": 0, "generation": 0}'


@pytest.mark.parametrize(
    "line",
    [
        '{"sequence": 1}',
        "[" * 100_000,
        WHOLE.replace('"sequence": 1', '"sequence": 1e999'),
        WHOLE.replace("1.0", "NaN"),
        WHOLE.replace("1.0", "1e300"),  # no clock shows it
        WHOLE.replace("1.0", "-1"),
        WHOLE.replace("}", ', "node": "\\ud800"}'),
    ],
    ids=["fields are missing", "deep", "an infinite number", "no time", "too late", "too early", "half a letter"],
)
def test_a_log_that_is_none_is_refused(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(line + "\n")
    assert main(["cost", "--log", str(log)]) == 2
    assert "log.jsonl, line 1: this is no event" in capsys.readouterr().err
    with pytest.raises(JobError, match="line 1: this is no event"):
        read_log(log)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_compressed_log_that_is_not_whole_is_refused(
    damaged: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = gzip.compress("".join(WHOLE.replace("1,", f"{i},") + "\n" for i in range(500)).encode())
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(whole[:20] + bytes(b ^ 0x5A for b in whole[20:]) if damaged else whole[: len(whole) // 2])
    assert main(["cost", "--log", str(log)]) == 2
    assert "it was cut short, or is damaged" in capsys.readouterr().err
    with pytest.raises(JobError, match="the log cannot be read"):
        read_log(log)

"""Real processes: a run is paused, saved and repaired, loses its coordinator, and goes on to the same bits."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from culm.__main__ import main
from culm.local.cluster import LocalCluster
from culm.local.parting import part
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 30
DEADLINE_SECONDS = 60.0  # ends a test that hangs; no test waits for it


class Operator:
    """Pauses the run once, has a node of it killed meanwhile, and lets it go on."""

    def __init__(self, cluster: LocalCluster, brake: Path) -> None:
        self._cluster = cluster
        self._brake = brake
        self._acted = False

    def culm(self, *words: str) -> int:
        return main([*words, "--coordinator", self._cluster.address])

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if self._acted or status.step < 5:
            return
        self._acted = True
        assert self.culm("pause") == 0
        self._brake.unlink()
        paused = stub.GetStatus(pb.GetStatusRequest())
        assert paused.phase == "paused"
        assert paused.pause.who
        assert self.culm("checkpoint", "now", "--json") == 0
        assert f"saved up to step {paused.step}: " in part(self._cluster.address).text
        os.kill(self._cluster.pids()["n1"], signal.SIGKILL)
        self._until(stub, lambda s: "n1" not in [n.id for n in s.nodes] and not any(s.exposure.values()))
        after = stub.GetStatus(pb.GetStatusRequest())
        assert (after.phase, after.step, after.samples_per_second) == ("paused", paused.step, 0.0)
        os.kill(self._cluster.pids()["coordinator"], signal.SIGKILL)
        self._until(stub, lambda s: s.term > after.term and {n.state for n in s.nodes} == {"active", "spare"})
        again = stub.GetStatus(pb.GetStatusRequest())
        assert (again.phase, again.step, again.pause) == ("paused", paused.step, paused.pause)
        assert self.culm("resume") == 0
        assert self.culm("resume") == 0, "a run that is not paused is left alone"

    def _until(self, stub: CoordinatorStub, is_there: Callable[[pb.GetStatusResponse], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            self._cluster.check()  # starts a coordinator again that was killed
            with suppress(grpc.RpcError):
                if is_there(stub.GetStatus(pb.GetStatusRequest())):
                    return
            time.sleep(0.05)
        raise AssertionError("it has not come to that in time")


def test_a_pause_changes_no_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brake = tmp_path / "brake"
    brake.touch()  # steps take long until the run is paused
    changes = [
        f"job.steps={STEPS}",
        "model.layers=tests.integration.bad_models:braked",
        f"checkpoint.url={tmp_path}/saved",
        "checkpoint.every=1000",
    ]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    slow = {f"n{i}": {"CULM_BRAKE": str(brake)} for i in range(4)}
    events: list[pb.ListEventsResponse] = []
    with LocalCluster(job, EXAMPLES, 4, folder=tmp_path / "run", patience=20.0, environments=slow) as cluster:
        outcome = train(cluster, lambda status, new, outcome: events.extend(new), Operator(cluster, brake))
    told = capsys.readouterr().out
    saved = next(json.loads(line) for line in told.splitlines() if line.startswith("{"))
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    kinds = [event.kind for event in events]
    assert kinds.index("pausing") < kinds.index("paused") < kinds.index("lost") < kinds.index("unpaused")
    between = kinds[kinds.index("paused") : kinds.index("unpaused")]
    assert "commit" not in between
    assert "stalled" not in kinds
    assert "recovered" not in kinds, "no work was taken over"
    assert (Path(saved["url"].removeprefix("file://")) / "manifest.json").exists()

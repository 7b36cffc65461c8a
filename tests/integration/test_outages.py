"""Real processes: the coordinator and Redis are killed again and again; no step is lost and no node restarted."""

import os
import signal
from pathlib import Path

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

EXAMPLES = Path(__file__).parents[2] / "examples"
SOAK = os.environ.get("CULM_SOAK") == "1"
STEPS, COORDINATOR_KILLS, REDIS_KILLS = (340, 10, 5) if SOAK else (140, 4, 2)
EVERY = 2 * STEPS // (3 * (COORDINATOR_KILLS + REDIS_KILLS))  # a busy machine sees some steps only late


class Killer:
    """Kill -9 every few steps: the coordinator twice, then Redis once."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._last = 0
        self.victims: list[str] = []

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step - self._last < EVERY or len(self.victims) == COORDINATOR_KILLS + REDIS_KILLS:
            return
        self._last = status.step
        victim = "redis" if len(self.victims) % 3 == 2 else "coordinator"
        self.victims.append(victim)
        os.kill(self._cluster.pids()[victim], signal.SIGKILL)


def test_the_coordinator_and_redis_killed_again_and_again_change_nothing(tmp_path: Path) -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", [f"job.steps={STEPS}", "pipeline.stages=3"])
    events: list[pb.ListEventsResponse] = []
    with LocalCluster(job, EXAMPLES, 3, folder=tmp_path / "run", patience=20.0) as cluster:
        killer = Killer(cluster)
        outcome = train(cluster, lambda status, new, outcome: events.extend(new), killer)
        assert cluster.deaths == []
    plain = run_plain(job)
    assert (killer.victims.count("coordinator"), killer.victims.count("redis")) == (COORDINATOR_KILLS, REDIS_KILLS)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    kinds = [event.kind for event in events]
    assert kinds.count("joined") == 3, "no node was restarted"
    assert kinds.count("recovered_coordinator") == COORDINATOR_KILLS
    assert "lost" not in kinds
    took_over = next(event for event in events if event.kind == "recovered_coordinator")
    assert took_over.text.startswith("coordinator local took over: ")
    assert took_over.fields["coordinator"] == "local"
    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences)), "every event once, in order, over all terms"

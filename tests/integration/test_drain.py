"""Real processes: a node that is to go hands over at a commit; not one instruction is run twice."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from culm.__main__ import main
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect
from tests.metadata_server import PATIENCE, MetadataServer

EXAMPLES = Path(__file__).parents[2] / "examples"
STAGES, MICROBATCHES = 3, 6
CLOUDS = {"aws": "aws", "gcp": "gcp", "azure": "azure", "rebalance": "aws"}
STEPS = 80
NODE = "n1"
NOTICED = ("draining", "warned")

Trigger = Callable[[LocalCluster, MetadataServer], object]


def sigterm(cluster: LocalCluster, server: MetadataServer) -> None:
    os.kill(cluster.pids()[NODE], signal.SIGTERM)


def by_command(cluster: LocalCluster, server: MetadataServer) -> None:
    assert main(["drain", "n9", "--coordinator", cluster.address, "--no-wait"]) == 2
    assert main(["drain", NODE, "--coordinator", cluster.address, "--no-wait"]) == 0


TRIGGERS: dict[str, Trigger] = {
    "sigterm": sigterm,
    "command": by_command,
    "aws": lambda cluster, server: server.interrupt_aws(),
    "gcp": lambda cluster, server: server.preempt_gcp(),
    "azure": lambda cluster, server: server.schedule_azure("Preempt", "vm_0"),
    "rebalance": lambda cluster, server: server.recommend_rebalance_aws(),
}


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    server = MetadataServer()
    yield server
    server.close()


class Braked:
    """Acts at a step, and keeps the run slow until that has been noticed: AWS is asked every five seconds only."""

    def __init__(self, step: int, act: Callable[[], object], brake: Path) -> None:
        self._step, self._act, self._brake = step, act, brake
        self._acted = False
        brake.touch()

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if not self._acted and status.step >= self._step:
            self._acted = True
            self._act()
        if self._acted and self._brake.exists():
            events = stub.ListEvents(pb.ListEventsRequest(from_sequence=1))
            if any(event.kind in NOTICED for event in events):
                self._brake.unlink()


# The other clouds' notices come in by the same door: tests/unit/test_notices.py has what is their own.
@pytest.mark.parametrize("trigger", TRIGGERS if os.environ.get("CULM_SOAK") == "1" else ("sigterm", "command", "aws"))
def test_a_node_that_is_to_go_hands_over_and_nothing_is_redone(
    trigger: str, server: MetadataServer, tmp_path: Path
) -> None:
    changes = [f"job.steps={STEPS}", f"pipeline.stages={STAGES}", f"pipeline.microbatches={MICROBATCHES}"]
    job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, "model.layers=tests.integration.bad_models:braked"])
    brake = tmp_path / "brake"
    slow = {f"n{i}": {"CULM_BRAKE": str(brake)} for i in range(STAGES + 1)}
    environment = {
        "CULM_NOTICES": CLOUDS.get(trigger, "none"),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url,
        "GCE_METADATA_HOST": server.host,
        "CULM_AZURE_METADATA_ENDPOINT": server.url,
    }
    events: list[pb.ListEventsResponse] = []
    folder = tmp_path / "run"
    with LocalCluster(
        job,
        EXAMPLES,
        STAGES + 1,
        folder=folder,
        patience=20.0,
        environments={**slow, NODE: {**slow[NODE], **environment}},
    ) as cluster:
        act = Braked(5, lambda: TRIGGERS[trigger](cluster, server), brake)
        outcome = train(cluster, lambda status, new, outcome: events.extend(new), act)
        channel, stub = connect(cluster.address)
        with channel:
            status = stub.GetStatus(pb.GetStatusRequest())
            states = {node.id: node.state for node in status.nodes}
            assert states.get(NODE) == ("spare" if trigger == "rebalance" else None)
            assert not any(status.exposure.values()), "the spare has taken its place"
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    kinds = [event.kind for event in events]
    assert "lost" not in kinds
    if trigger == "rebalance":
        assert "warned" in kinds
        assert "left" not in kinds
    else:
        assert kinds.index("draining") < kinds.index("left")
    assert sum(instructions(log) for log in folder.glob("n*.log")) == STEPS * STAGES * 2 * MICROBATCHES


def instructions(log: Path) -> int:
    """How many the node ran, by its own last word."""
    (count,) = re.findall(r"ends after (\d+) instructions", log.read_text())
    return int(count)


def test_an_end_that_moves_reaches_the_coordinator(tmp_path: Path) -> None:
    """A run of one node, which has nobody to hand over to: it works to the end of its machine."""
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=1000000", "pipeline.stages=1"])
    file = tmp_path / "preempt"
    environment = {"n0": {"CULM_NOTICES": f"file:{file}"}}
    with LocalCluster(job, EXAMPLES, 1, folder=tmp_path / "run", environments=environment) as cluster:
        channel, stub = connect(cluster.address, patience=PATIENCE)
        with channel:
            drained = (
                event
                for event in stub.ListEvents(pb.ListEventsRequest(from_sequence=1, follow=True), timeout=PATIENCE)
                if event.kind in ("plan", "draining")
            )
            assert next(drained).kind == "plan"
            for written, least, most, said in (
                ("900", 880, 900, "n0 hands over what it holds and goes"),
                ("300", 280, 300, "n0 goes sooner than it said before"),
                ("600", 580, 600, "n0 goes later than it said before"),
            ):
                file.write_text(written)
                event = next(drained)
                assert event.text.startswith(said)
                assert least <= float(event.fields["seconds_left"]) <= most

"""Mutual TLS between real processes: the same bits, and whoever should not come in does not."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from culm.local.authority import INITIAL, issue, make_authority
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.ui.source import Live
from tests.integration.test_tensor_workers import OnceWorkersAreThere, tasks_done

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STEPS = 60


def make_certificates(folder: Path, days: float = 1.0) -> Path:
    make_authority(folder)
    for role in INITIAL:
        issue(folder, role, role, days)
    return folder


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is an operator; nodes get the certificates of a stage, by the environments of the cluster."""
    folder = make_certificates(tmp_path / "certs")
    monkeypatch.setenv("CULM_TLS_DIR", str(folder / "operator"))
    return folder


@pytest.fixture
def cluster(certificates: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    job = load_job(EXAMPLES / "digits_mlp.toml", [f"job.steps={STEPS}", "pipeline.stages=2"])
    roles = {"coordinator": "coordinator", **{f"n{i}": "stage" for i in range(3)}}
    environments = {name: {"CULM_TLS_DIR": str(certificates / role)} for name, role in roles.items()}
    kills = [Kill("n1", 40, "1B1")]
    with LocalCluster(job, EXAMPLES, 3, kills, folder=tmp_path / "run", environments=environments) as cluster:
        yield cluster


def culm(*words: str, certificates: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "CULM_TLS_DIR"}
    if certificates is not None:
        environment["CULM_TLS_DIR"] = str(certificates)
    command = [sys.executable, "-m", "culm", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_certificates_change_during_a_run_and_no_bit_does(cluster: LocalCluster, certificates: Path) -> None:
    """A node is lost afterwards, so that every kind of connection is made anew, with the new ones."""
    changed: list[int] = []

    def rotate(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step >= 10 and not changed:
            changed.append(status.step)
            for role in INITIAL:
                issue(certificates, role, role, 2.0)

    outcome = train(cluster, lambda status, events, outcome: None, rotate)
    assert changed
    assert len(outcome.losses_of_nodes) == 1
    assert outcome.sha256 == run_plain(cluster.job).sha256


def test_who_is_refused_is_told_why_and_disturbs_nothing(
    cluster: LocalCluster, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = cluster.address
    stranger = make_certificates(tmp_path / "stranger")  # another job's
    expired = tmp_path / "expired"
    shutil.copytree(certificates, expired)
    issue(expired, "stage", "stage", -0.001)
    stage = ("stage", "--coordinator", address, "--connect-timeout", "2", "--notices", "none")
    worker = ("tensor-worker", "--coordinator", address, "--connect-timeout", "2")
    tried = {
        "the role viewer; Attend needs the role stage": (stage, certificates / "viewer"),
        "with TLS alone: set CULM_TLS_DIR to a folder of certificates": (stage, None),
        "is not of the authority in": (stage, stranger / "stage"),
        "the certificate expired on": (stage, expired / "stage"),
        "with TLS alone: set CULM_TLS_DIR to a folder": (worker, None),
    }
    with ThreadPoolExecutor(len(tried)) as at_once:
        refused = {why: at_once.submit(culm, *words, certificates=shown) for why, (words, shown) in tried.items()}
    # Alone: of one caller the coordinator logs a line a second.
    drain = culm("drain", "n0", "--coordinator", address, certificates=certificates / "viewer")
    told = {why: done.result() for why, done in refused.items()}
    for why, done in {**told, "the role viewer; Drain needs the role operator": drain}.items():
        assert done.returncode == 2, f"{why}: {done.stderr}"
        assert why in done.stderr.strip().split("\n")[-1]
    looked = culm("status", "--json", "--coordinator", address, certificates=certificates / "viewer")
    assert looked.returncode == 0, looked.stderr
    with monkeypatch.context() as viewing:
        viewing.setenv("CULM_TLS_DIR", str(certificates / "viewer"))
        assert "n0 was not preempted: the certificate has the role viewer; Kill needs the role operator" in Live(
            address
        ).kill("n0")
    outcome = train(cluster, lambda status, events, outcome: None)
    assert [loss["node"] for loss in outcome.losses_of_nodes] == ["n1"], "the one that was asked for"
    assert outcome.sha256 == run_plain(cluster.job).sha256
    log = (cluster.folder / "coordinator.log").read_text()
    # Of one caller a line a second: what is refused right after the Drain is only counted.
    for why in ("the role viewer; Attend needs the role stage", "the role viewer; Drain"):
        assert why in log


def test_a_tensor_worker_reaches_the_coordinator_and_the_servers_by_tls(certificates: Path, tmp_path: Path) -> None:
    job = load_job(EXAMPLES / "blocks.toml", ["graph.servers=1", "graph.workers=1"])
    roles = {"coordinator": "coordinator", "n0": "stage", "w0": "stage"}
    environments = {name: {"CULM_TLS_DIR": str(certificates / role)} for name, role in roles.items()}
    once_there = OnceWorkersAreThere(tmp_path / "run", links=1)
    with LocalCluster(job, EXAMPLES, 1, folder=tmp_path / "run", environments=environments) as cluster:
        outcome = train(cluster, lambda status, events, outcome: once_there(cluster, status))
    assert tasks_done(tmp_path / "run") > 0
    assert outcome.sha256 == run_plain(job).sha256


def test_a_stage_is_no_coordinator(cluster: LocalCluster, certificates: Path) -> None:
    """A node would not obey whoever listens with a stage's certificate."""
    told = culm("health", "--role", "stage", cluster.address, certificates=certificates / "stage")
    assert told.returncode == 1
    assert culm("health", cluster.address, certificates=certificates / "stage").returncode == 0


def test_an_address_that_others_reach_wants_certificates() -> None:
    words = ("coordinator", "--job", str(EXAMPLES / "digits_mlp.toml"), "--listen", "0.0.0.0:0")
    done = culm(*words, certificates=None)
    assert done.returncode == 2
    assert "or allow it with --insecure" in done.stderr
    assert len(done.stderr.strip().split("\n")) == 1

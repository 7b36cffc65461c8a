"""Which coordinator a command asks that names none: the usual one, or that of the only cluster that is up."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from culm.__main__ import main
from culm.engines.named_cluster import coordinator_of
from culm.local import clusters
from culm.local.clusters import Process, Record
from culm.local.ports import free_port
from culm.pipeline import default_ports
from culm.pipeline.errors import JobError


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A usual address at which nobody listens."""
    port = free_port()
    monkeypatch.setattr(default_ports, "COORDINATOR_PORT", port)
    monkeypatch.setattr(default_ports, "COORDINATOR", f"127.0.0.1:{port}")
    monkeypatch.setenv("CULM_HOME", str(tmp_path))
    monkeypatch.delenv("CULM_COORDINATOR", raising=False)
    return default_ports.COORDINATOR


def up(name: str, address: str) -> None:
    own = Process.of(os.getpid())
    assert own is not None
    clusters.write(clusters.make_folder(name), Record(name=name, address=address, processes={"keeper": own}))


def found(cluster: str = "") -> tuple[str, list[str]]:
    said: list[str] = []
    return coordinator_of(cluster, said.append), said


def test_without_a_cluster_the_usual_address_is_meant(usual: str) -> None:
    assert found() == (usual, [])


def test_the_only_cluster_is_found_and_said() -> None:
    up("gpt", "127.0.0.1:1")
    assert found() == ("127.0.0.1:1", ["asking the cluster gpt, the only one that is up (--cluster gpt says so)"])


def test_of_several_clusters_one_has_to_be_named() -> None:
    up("gpt", "127.0.0.1:1")
    up("mlp", "127.0.0.1:2")
    with pytest.raises(JobError, match=r"--cluster: .*several clusters are up: gpt, mlp; name one of them"):
        found()
    assert found("mlp") == ("127.0.0.1:2", [])


def test_a_cluster_at_the_usual_address_is_the_one_that_is_meant(usual: str) -> None:
    up("gpt", usual)
    up("mlp", "127.0.0.1:2")
    assert found() == (usual, [])


def test_a_coordinator_at_the_usual_address_comes_first(usual: str) -> None:
    """As that of culm run, in another terminal."""
    up("gpt", "127.0.0.1:1")
    with ThreadPoolExecutor() as pool:
        server = grpc.server(pool)
        server.add_insecure_port(usual)
        server.start()
        assert found() == (usual, [])
        server.stop(None).wait()


def test_another_program_at_the_usual_address_is_no_coordinator() -> None:
    """It took the port, and so the cluster's coordinator listens elsewhere."""
    up("gpt", "127.0.0.1:1")
    with socket.create_server(("127.0.0.1", default_ports.COORDINATOR_PORT)):
        assert found()[0] == "127.0.0.1:1"


def test_commands_go_by_it(capsys: pytest.CaptureFixture[str]) -> None:
    up("gpt", "127.0.0.1:1")
    assert main(["status"]) == 2
    said = capsys.readouterr().err
    assert "asking the cluster gpt" in said
    assert "no coordinator answers at 127.0.0.1:1" in said


def test_a_coordinator_that_is_named_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    up("gpt", "127.0.0.1:1")
    assert main(["status", "--coordinator", "127.0.0.1:2"]) == 2
    assert "no coordinator answers at 127.0.0.1:2" in capsys.readouterr().err


def test_a_recorded_run_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    up("gpt", "127.0.0.1:1")
    up("mlp", "127.0.0.1:2")
    log = Path(__file__).parents[2] / "ui" / "demo.jsonl.gz"
    assert main(["cost", "--log", str(log)]) == 0
    assert main(["cost"]) == 2
    assert "several clusters are up" in capsys.readouterr().err

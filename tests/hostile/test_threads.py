"""Any unexpected exception of any thread ends the process with its reason; an order to die kills, also PID 1."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.patience import Patience
from culm.pipeline.rpc.channel import details, server_options
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, CoordinatorStub, add_CoordinatorServicer_to_server
from culm.stage_server.service import StageServer
from culm.stage_server.stage_settings import StageSettings
from culm.stage_server.turn import Turn
from culm.terminal.outcome import RunFailed
from tests.hostile.bad_nodes import ROOT, Later, Seen, bad_job, run


def test_a_place_that_is_none_is_refused_and_nobody_dies(tmp_path: Path) -> None:
    job, seen = bad_job(60), Seen()
    said: list[str] = []

    def order(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step >= 3 and not said:
            for at in ("nonsense", "5:", "5:2B3:4", "\u00b2:forward", "-1:forward", "5:reduce"):
                with pytest.raises(grpc.RpcError) as refused:
                    stub.Kill(pb.KillRequest(node="n0", at=at), timeout=20.0)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                said.append(details(refused.value))

    outcome = run(job, 2, tmp_path / "run", disturb=order, seen=seen)
    assert outcome.sha256 == run_plain(job).sha256
    assert seen.texts("lost") == []
    assert all("names no instruction: write STEP:INSTRUCTION" in text for text in said)


@pytest.mark.parametrize("thread", ["orders", "heartbeat", "send", "receive"])
def test_what_raises_on_a_thread_ends_the_node_with_its_reason(thread: str, tmp_path: Path) -> None:
    """The fault is put into the process by its environment: see ``bad_nodes``. The steps outlast some heartbeats."""
    job, seen, flag = bad_job(400 if thread == "heartbeat" else 100), Seen(), tmp_path / "flag"
    broken = {"n1": {"CULM_BREAKS": thread, "CULM_FLAG": str(flag)}}
    outcome = run(job, 3, tmp_path / "run", broken, Later(flag, 5), seen)
    assert outcome.sha256 == run_plain(job).sha256
    lost = [text for text in seen.texts("lost") if text.startswith("n1 ")]
    assert "it failed: the thread " in lost[0]
    assert "raised ZeroDivisionError: nobody expected this" in lost[0]
    lines = (tmp_path / "run" / "n1.log").read_text().splitlines()
    assert [x for x in lines if x.startswith("culm stage: the thread ")], "its own last line"


class Quick(CoordinatorServicer):
    """A coordinator whose dismissal reaches the node while it is still saying why it ends."""

    server: StageServer

    def Attend(  # noqa: N802
        self, request_iterator: Iterator[pb.AttendRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AttendResponse]:
        for request in request_iterator:
            if request.HasField("failed"):
                dismiss = pb.Dismiss(why="n1 was declared lost (it failed)", join_anew=True)
                self.server.order(pb.AttendResponse(dismiss=dismiss))
        yield from ()


def test_a_node_that_breaks_ends_though_it_is_told_to_join_anew(capfd: pytest.CaptureFixture[str]) -> None:
    coordinator = grpc.server(ThreadPoolExecutor(1), options=server_options(Patience()))
    quick = Quick()  # type: ignore[abstract]
    add_CoordinatorServicer_to_server(quick, coordinator)
    port = coordinator.add_insecure_port("127.0.0.1:0")
    coordinator.start()
    quick.server = server = StageServer(StageSettings(coordinator=f"127.0.0.1:{port}", name="n1", notices="none"))
    server.broken(ZeroDivisionError("nobody expected this"))
    assert server.run() == 1
    assert not server.join_anew
    said = capfd.readouterr().err.splitlines()
    assert said[-1] == "culm stage: the thread MainThread raised ZeroDivisionError: nobody expected this"
    coordinator.stop(None)


@pytest.fixture
def node() -> StageServer:
    """Of a coordinator that nobody answers for."""
    return StageServer(StageSettings(coordinator="127.0.0.1:1", name="n1", notices="none"))


ANEW = pb.AttendResponse(dismiss=pb.Dismiss(why="n1 was declared lost (silent)", join_anew=True))


@pytest.mark.parametrize("signal_of", [StageServer.terminate, StageServer.stop])
def test_a_signal_while_a_node_ends_to_join_anew_ends_it_for_good(
    signal_of: Callable[[StageServer], None], node: StageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    node.order(ANEW)
    assert (node.join_anew, node.told) == (True, False)
    signal_of(node)
    assert node.run() == 0
    assert node.told
    assert "culm stage:" not in capfd.readouterr().err


def test_a_node_that_breaks_does_not_join_anew_for_what_it_holds(node: StageServer) -> None:
    node.broken(ZeroDivisionError("nobody expected this"))
    node._forfeit("it lacks layers that the plan counts on")
    assert node.run() == 1
    assert not node.join_anew


def test_the_lock_passes_on_what_was_raised_once_it_is_free() -> None:
    told: list[tuple[BaseException, bool]] = []

    def broken(error: BaseException) -> None:
        taken: list[bool] = []
        other = threading.Thread(target=lambda: taken.append(turn.acquire(blocking=False)))
        other.start()
        other.join()
        told.append((error, taken[0]))

    turn = Turn(broken)
    with turn:
        pass
    with pytest.raises(ValueError, match="half changed"), turn:
        raise ValueError("half changed")
    ((error, free),) = told
    assert str(error) == "half changed"
    assert free


class Ordered(Exception):
    """The node has been ordered to die, under this process id."""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_an_order_to_die_kills_the_first_process_of_a_container(tmp_path: Path) -> None:
    """The kernel ignores a SIGKILL that PID 1 sends to itself."""
    with LocalCluster(bad_job(1_000_000), ROOT, 2, folder=tmp_path / "run", patience=20.0) as cluster:
        words = [sys.executable, "-m", "culm", "stage", "--coordinator", cluster.address, "--name", "contained"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        contained = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *words], env=environment)

        def order(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
            if any(n.id == "contained" and n.state != "joining" for n in status.nodes):
                raise Ordered(stub.Kill(pb.KillRequest(node="contained"), timeout=20.0).pid)

        try:
            with pytest.raises(Ordered) as ordered:
                train(cluster, lambda status, events, outcome: None, order)
            assert ordered.value.args == (1,), "it is the first of its namespace"
            assert contained.wait() == 128 + signal.SIGKILL
        finally:
            contained.kill()
            contained.wait()


def test_a_run_whose_only_node_breaks_ends(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    broken = {"n0": {"CULM_FATAL": "raise", "CULM_FLAG": str(flag)}}
    with pytest.raises(RunFailed, match="out of luck") as failed:
        run(bad_job(10_000, 1), 1, tmp_path / "run", broken, Later(flag, 3))
    assert failed.value.code == 1

"""A stop is not an end (rule 17): coordinators told to stop, lost nodes after the last commit, and who ends whom."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from culm.local.cluster import LocalCluster
from culm.local.processes import Child
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, job_to_toml, load_job
from culm.pipeline.patience import Patience
from culm.pipeline.rpc.channel import server_options
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, CoordinatorStub, add_CoordinatorServicer_to_server
from culm.terminal.client import connect
from culm.terminal.outcome import Outcome
from tests.hostile.commands import ROOT, as_process, environment, in_process
from tests.signals import with_default_signals

EXAMPLE = ROOT / "examples" / "digits_mlp.toml"
DEADLINE = 120.0  # seconds until a test that hangs fails; no test waits for it
STEPS = 150


def digits(*overrides: str) -> Job:
    return load_job(EXAMPLE, [f"job.steps={STEPS}", *overrides])


@pytest.fixture(scope="module")
def plain() -> PlainResult:
    return run_plain(digits())


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    overrides: tuple[str, ...] = getattr(request, "param", ())
    names = {name: {"CULM_COORDINATOR_TIMEOUT": "1"} for name in ("n0", "n2")} if "timeout" in overrides else {}
    job = digits(*(x for x in overrides if x != "timeout"))
    started = LocalCluster(job, EXAMPLE.parent, 3, folder=tmp_path / "run", patience=10.0, environments=names)
    with started:
        yield started


def child(cluster: LocalCluster, name: str) -> Child:
    return cluster._children[name]


def stop(cluster: LocalCluster, *names: str) -> list[Child]:
    """SIGTERM to all of them at once; returns when all have ended."""
    told = [child(cluster, name) for name in names]
    for each in told:
        os.kill(each.pid, signal.SIGTERM)
    for each in told:
        assert each.wait(DEADLINE), each.log.read_text()
    return told


def once(step: int, act: Callable[[], object]) -> Callable[[CoordinatorStub, pb.GetStatusResponse, object], None]:
    """Acts when the run has come to this step."""
    acted: list[object] = []

    def disturb(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: object) -> None:
        if status.step >= step and not acted:
            acted.append(act())

    return disturb


def ignore(status: pb.GetStatusResponse, events: object, outcome: Outcome) -> None:
    return


def events_until(stub: CoordinatorStub, enough: Callable[[list[pb.ListEventsResponse]], bool]) -> None:
    """Follows the events until there are enough."""
    seen: list[pb.ListEventsResponse] = []
    for event in stub.ListEvents(pb.ListEventsRequest(from_sequence=1, follow=True), timeout=DEADLINE):
        seen.append(event)
        if enough(seen):
            return


def weights(cluster: LocalCluster, *words: str) -> tuple[int, str]:
    done = in_process(
        "weights", "--coordinator", cluster.address, "--json", *words, folder=cluster.folder, CULM_RUN="x"
    )
    return done.code, json.loads(done.out)["weights_sha256"] if done.code == 0 else done.err


def test_a_coordinator_that_is_told_to_stop_and_starts_again_ends_no_node(
    cluster: LocalCluster, plain: PlainResult
) -> None:
    """In the middle of the run. It dismissed all nodes, which then were gone for good."""
    before = {name: pid for name, pid in cluster.pids().items() if name.startswith("n")}
    outcome = train(cluster, ignore, once(10, lambda: stop(cluster, "coordinator")))
    assert outcome.sha256 == plain.sha256
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    after = {name: pid for name, pid in cluster.pids().items() if name.startswith("n")}
    assert after == before, "a node ended with its coordinator"


def test_after_the_last_commit_losses_and_restarts_cost_nothing_until_the_weights_are_fetched(
    cluster: LocalCluster, plain: PlainResult, tmp_path: Path
) -> None:
    assert train(cluster, ignore).sha256 == plain.sha256

    stop(cluster, "coordinator")  # nobody has fetched the weights for good
    cluster.check()
    assert weights(cluster) == (0, plain.sha256)

    channel, stub = connect(cluster.address, patience=DEADLINE)
    with channel:
        for count, lost in enumerate(("n1", "n2"), 1):  # two lost nodes: the second took the last copies
            cluster.kill(lost)
            assert child(cluster, lost).wait(DEADLINE)
            events_until(stub, lambda seen, count=count: sum(e.kind == "lost" for e in seen) >= count)  # type: ignore[misc]
            status = stub.GetStatus(pb.GetStatusRequest())
            assert (status.phase, status.step, status.era) == ("done", STEPS, 0)
            if count == 1:
                events_until(stub, _is_repaired)
        assert "on the nodes alone" in stub.GetStatus(pb.GetStatusRequest()).detail
        assert weights(cluster) == (0, plain.sha256)

        out = tmp_path / "out.safetensors"
        assert weights(cluster, "--out", str(out)) == (0, plain.sha256)
        assert out.exists()
        last = child(cluster, "n0")
        assert last.wait(DEADLINE), "its weights were fetched, and the node stays"
        assert last.returncode == 0

    stop(cluster, "coordinator")  # it knows afterwards that the run is over
    cluster.check()
    code, said = weights(cluster)
    assert code == 1
    assert "the nodes have gone: the run is done and its weights were fetched" in said


def _is_repaired(seen: list[pb.ListEventsResponse]) -> bool:
    """Whether every stage of the newest plan has a hot standby."""
    plans = [json.loads(e.fields["stages"]) for e in seen if e.kind == "plan"]
    lost = max((i for i, e in enumerate(seen) if e.kind == "lost"), default=len(seen))
    anew = any(e.kind == "plan" for e in seen[lost:])
    return anew and all(any(hot for _, hot in standbys) for _, _, _, standbys in plans[-1])


def test_a_cluster_that_is_stopped_whole_writes_a_last_checkpoint_and_goes_on_from_it(
    tmp_path: Path, plain: PlainResult
) -> None:
    """Every node handed over to the others, which were to go as well, for as long as they were let."""
    url = f"file://{tmp_path}/checkpoints"
    job = digits(f"checkpoint.url={url}", "checkpoint.every=1000")
    with LocalCluster(job, EXAMPLE.parent, 3, folder=tmp_path / "run", patience=10.0) as cluster:

        def stop_all() -> None:
            for ended in stop(cluster, "n0", "n1", "n2"):
                assert ended.returncode == 0, ended.last_line()
                assert "nobody took over" not in ended.log.read_text()
            for i in range(3):
                cluster.add(f"again{i}")

        outcome = train(cluster, ignore, once(10, stop_all))
        kinds: dict[str, pb.ListEventsResponse] = {}
        channel, stub = connect(cluster.address, patience=DEADLINE)
        with channel:
            for event in stub.ListEvents(pb.ListEventsRequest(from_sequence=1)):
                kinds.setdefault(event.kind, event)
    assert outcome.sha256 == plain.sha256
    assert int(kinds["rollback"].fields["step"]) >= 10, kinds["rollback"].text
    assert "every node was told to stop" in kinds["rollback"].text


@pytest.mark.parametrize("cluster", [("timeout",)], indirect=True)
def test_nodes_whose_coordinator_is_gone_end_after_a_bound_of_their_own(cluster: LocalCluster) -> None:
    channel, stub = connect(cluster.address, patience=DEADLINE)
    with channel:
        events_until(stub, lambda seen: any(e.kind == "commit" for e in seen))
    cluster.kill("coordinator")
    assert child(cluster, "coordinator").wait(DEADLINE)
    (told,) = stop(cluster, "n1")
    assert told.returncode == 0, "told to stop as well, it waits for nobody"
    for name in ("n0", "n2"):
        assert child(cluster, name).wait(DEADLINE)
        assert child(cluster, name).returncode == 1
        assert re.fullmatch(
            r"culm stage: no coordinator at \S+ for 1 s: the node ends, and what it held is lost; .*",
            child(cluster, name).last_line(),
        )


class Leaving(CoordinatorServicer):
    """A coordinator that tells its only node to stop, and goes as soon as the node asks to hand over."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def Attend(  # noqa: N802
        self, request_iterator: Iterator[pb.AttendRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AttendResponse]:
        join = next(request_iterator).join
        yield pb.AttendResponse(welcome=pb.Welcome(job_toml=job_to_toml(digits()), term=1))
        for request in request_iterator:
            if request.HasField("available"):
                os.kill(join.pid, signal.SIGTERM)
            elif request.HasField("draining"):
                self.asked.set()


def test_a_node_told_to_stop_ends_in_order_though_its_own_bound_is_shorter(tmp_path: Path) -> None:
    coordinator = grpc.server(ThreadPoolExecutor(1), options=server_options(Patience()))
    leaving = Leaving()  # type: ignore[abstract]
    add_CoordinatorServicer_to_server(leaving, coordinator)
    address = f"127.0.0.1:{coordinator.add_insecure_port('127.0.0.1:0')}"
    coordinator.start()
    words = ["-m", "culm", "stage", "--coordinator", address, "--coordinator-timeout", "0.1", "--notices", "none"]
    node = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert leaving.asked.wait(DEADLINE)
        coordinator.stop(None)
        _, said = node.communicate(timeout=DEADLINE)
    finally:
        node.kill()
    assert node.returncode == 0, said


class Dismissing(CoordinatorServicer):
    """A coordinator whose only node is told to stop, and is declared lost while it asks to hand over."""

    def __init__(self) -> None:
        self.joins: list[int] = []  # incarnations

    def Attend(  # noqa: N802
        self, request_iterator: Iterator[pb.AttendRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AttendResponse]:
        join = next(request_iterator).join
        self.joins.append(join.incarnation)
        if len(self.joins) > 1:
            yield pb.AttendResponse(dismiss=pb.Dismiss())
            return
        yield pb.AttendResponse(welcome=pb.Welcome(job_toml=job_to_toml(digits()), term=1))
        for request in request_iterator:
            if request.HasField("available"):
                os.kill(join.pid, signal.SIGTERM)
            elif request.HasField("draining"):
                yield pb.AttendResponse(dismiss=pb.Dismiss(why="n0 was declared lost (silent)", join_anew=True))


def test_a_node_told_to_stop_joins_nobody_anew() -> None:
    coordinator = grpc.server(ThreadPoolExecutor(2), options=server_options(Patience()))
    dismissing = Dismissing()  # type: ignore[abstract]
    add_CoordinatorServicer_to_server(dismissing, coordinator)
    address = f"127.0.0.1:{coordinator.add_insecure_port('127.0.0.1:0')}"
    coordinator.start()
    words = [sys.executable, "-m", "culm", "stage", "--coordinator", address, "--notices", "none"]
    node = subprocess.Popen(with_default_signals(words), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        _, said = node.communicate(timeout=DEADLINE)
    finally:
        node.kill()
        coordinator.stop(None)
    assert node.returncode == 0, said
    assert len(dismissing.joins) == 1, said
    assert "culm stage:" not in said, "it ends in order, and has nothing to complain of"


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("logs:", signal.SIGINT),
        ("coordinator:", signal.SIGKILL),
        pytest.param("logs:", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("logs:", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("coordinator:", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("coordinator:", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("coordinator:", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_launcher_that_is_interrupted_leaves_nothing_running(tmp_path: Path, when: str, number: int) -> None:
    """``logs:`` is said before anything but the nodes' common parent is started, ``coordinator:`` after everything."""
    words = ["run", str(EXAMPLE), "--set", "job.steps=1000000", "--coordinator-address", "127.0.0.1:0"]
    launcher = subprocess.Popen(
        with_default_signals([sys.executable, "-m", "culm", *words]),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with launcher:
        assert launcher.stderr is not None
        try:
            before: list[str] = []
            while not before or not before[-1].startswith(when):
                before.append(launcher.stderr.readline())
                assert before[-1], before
            begun = psutil.Process(launcher.pid).children(recursive=True)
            assert begun
            launcher.send_signal(number)
            said = launcher.stderr.read()
        finally:
            launcher.kill()
    _, left = psutil.wait_procs(begun, timeout=DEADLINE)
    assert left == []
    if number != signal.SIGKILL:
        assert launcher.returncode == 130
        assert said.splitlines()[-1].startswith("culm run: interrupted")  # also where it has not begun to start any
        assert "Traceback" not in said


@pytest.mark.slow
def test_a_share_of_the_last_checkpoint_that_went_with_its_node_is_written_again(tmp_path: Path) -> None:
    options = [f"checkpoint.url=file://{tmp_path / 'saved'}", "checkpoint.every=1000", "job.steps=8"]
    words = [word for option in options for word in ("--set", option)]
    done = in_process("run", str(EXAMPLE), *words, "--spares", "1", "--kill", "n1@7:commit", folder=tmp_path)
    assert done.code == 0, done.err
    assert (tmp_path / "saved" / "step-00000008" / "manifest.json").exists()


SEMAPHORE = """
import multiprocessing
from culm.examples.digits_mlp import dataset as digits

def dataset(**arguments):
    global lock
    lock = multiprocessing.Lock()  # as tqdm makes one
    return digits(**arguments)
"""


def test_semaphores_of_a_killed_node_are_not_told_to_the_user_as_leaks(tmp_path: Path) -> None:
    (tmp_path / "locked.py").write_text(SEMAPHORE)
    job = EXAMPLE.read_text().replace("culm.examples.digits_mlp:dataset", "locked:dataset")
    (tmp_path / "job.toml").write_text(job)
    done = as_process("run", "job.toml", "--set", "job.steps=20", "--kill", "n1@7", folder=tmp_path)
    assert done.code == 0, done.err
    assert "leaked" not in done.err
    assert any("leaked semaphore" in log.read_text() for log in tmp_path.rglob("n1*.log"))

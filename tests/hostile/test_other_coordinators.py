"""Another coordinator listens in place of the run's own: no node that holds state attends it, or ends (rule 23)."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import job_to_toml, load_job
from culm.pipeline.patience import Patience
from culm.pipeline.rpc.channel import server_options
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from tests.hostile.commands import ROOT, environment
from tests.hostile.test_edited_job import Editor, job_with

DEADLINE = 120.0  # seconds until a test that hangs fails; no test waits for it
JOB = job_to_toml(load_job(ROOT / "examples" / "digits_mlp.toml"))
NEWER = JOB.replace("[job]\n", "[job]\nadded_later = 1\n")

Requests = Iterator[pb.AttendRequest]
Act = Callable[[Requests, grpc.ServicerContext], Iterator[pb.AttendResponse]]


def until_available(requests: Requests, context: grpc.ServicerContext) -> Iterator[pb.AttendResponse]:
    """The run's own, until the node has built the model."""
    yield pb.AttendResponse(welcome=pb.Welcome(job_toml=JOB, term=1))
    for request in requests:
        if request.HasField("available"):
            return


def newer(requests: Requests, context: grpc.ServicerContext) -> Iterator[pb.AttendResponse]:
    """One of a version with another key: it writes that out, though the job file does not have it."""
    yield pb.AttendResponse(welcome=pb.Welcome(job_toml=NEWER, term=2))
    for _ in requests:
        pass


def denying(requests: Requests, context: grpc.ServicerContext) -> Iterator[pb.AttendResponse]:
    """One for whose run the node's certificate is not."""
    yield from ()
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate is for the run nightly")


def letting_go(requests: Requests, context: grpc.ServicerContext) -> Iterator[pb.AttendResponse]:
    """The run's own again: the run is over."""
    yield pb.AttendResponse(welcome=pb.Welcome(job_toml=JOB, term=3))
    for request in requests:
        if request.HasField("available"):
            yield pb.AttendResponse(dismiss=pb.Dismiss(why="the run is over", goodbye=True))


class OneAfterAnother(CoordinatorServicer):
    """At each attempt of the node another coordinator listens; the last one stays."""

    def __init__(self, *acts: Act) -> None:
        self._acts = list(acts)
        self.joins: list[pb.Join] = []

    def Attend(  # noqa: N802
        self, request_iterator: Requests, context: grpc.ServicerContext
    ) -> Iterator[pb.AttendResponse]:
        self.joins.append(next(request_iterator).join)
        act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
        yield from act(request_iterator, context)


def attended(*acts: Act) -> tuple[OneAfterAnother, int, str]:
    """A node's process from its start to its end: whom it met, its exit code, and what it said."""
    server = grpc.server(ThreadPoolExecutor(8), options=server_options(Patience()))
    coordinators = OneAfterAnother(*acts)  # type: ignore[abstract]
    add_CoordinatorServicer_to_server(coordinators, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    words = ["-m", "culm", "stage", "--coordinator", address, "--notices", "none"]
    node = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        _, said = node.communicate(timeout=DEADLINE)
    finally:
        node.kill()
        server.stop(None)
    return coordinators, node.returncode, said


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (newer, "the coordinator's job is one of another version of culm: the coordinator's job, job.added_later"),
        (denying, "the certificate is for the run nightly"),
    ],
)
def test_a_node_waits_for_its_own_coordinator(other: Act, why: str) -> None:
    coordinators, code, said = attended(until_available, other, other, other, letting_go)
    assert code == 0, said
    assert len({(join.pid, join.incarnation) for join in coordinators.joins}) == 1
    assert [join.term for join in coordinators.joins] == [0, 1, 1, 1, 1]
    assert said.count(why) == 1, "once, and not at each attempt"


def test_a_node_that_nobody_has_welcomed_ends_where_it_is_denied() -> None:
    _, code, said = attended(denying)
    assert code == 2
    assert said.splitlines()[-1].endswith("refuses this node: the certificate is for the run nightly")


def test_a_coordinator_that_is_started_for_another_run_ends_no_node(tmp_path: Path) -> None:
    with LocalCluster(job_with(), ROOT / "examples", 2, folder=tmp_path / "run", patience=20.0) as cluster:
        own = cluster._environment["CULM_RUN"]
        before = [cluster.pids()[name] for name in cluster.names]

        def start_for(run: str) -> None:
            cluster._environment["CULM_RUN"] = run
            cluster.kill("coordinator")

        def both_turned_away(status: pb.GetStatusResponse) -> bool:
            words = f"was started for run {own}, and this coordinator serves run another"
            return all(words in (cluster.folder / f"{name}.log").read_text() for name in cluster.names)

        editor = Editor(
            (lambda status: status.step >= 40, lambda: start_for("another")),
            (both_turned_away, lambda: start_for(own)),
        )
        outcome = train(cluster, lambda *_: None, editor)
        assert [cluster.pids().get(name) for name in cluster.names] == before
    assert editor.is_done
    assert outcome.sha256 == run_plain(job_with()).sha256

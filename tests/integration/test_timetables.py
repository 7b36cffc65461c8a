"""``culm trace`` on a real run, and what it says where there is nothing to trace."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from culm.__main__ import main
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job
from culm.pipeline.rpc.admission import AdmissionInterceptor
from culm.pipeline.rpc.roles import RoleInterceptor
from culm.pipeline.rpc.timetables import gather
from culm.pipeline.schedule import Schedule
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.protos.stage_pb2_grpc import TimetablesStub
from culm.stage_server.streams.timetables import Timetables
from culm.stage_server.watching import spans
from culm.stage_server.watching.spans import Spans
from tests.short import unit

EXAMPLES = Path(__file__).parents[2] / "examples"
PIPELINES, STAGES, MICROBATCHES = 2, 2, 3


def test_a_traced_step_has_every_instruction_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = [f"pipeline.stages={STAGES}", f"pipeline.pipelines={PIPELINES}", f"pipeline.microbatches={MICROBATCHES}"]
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=30", "data.microbatch=2", *shape])
    written = tmp_path / "trace.json"
    codes: list[int] = []

    def look(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step >= 5 and not codes:
            codes.append(main(["trace", "--coordinator", cluster.address, "--out", str(written), "--json"]))

    with LocalCluster(job, EXAMPLES, 4, folder=tmp_path / "run") as cluster:
        train(cluster, lambda status, new, outcome: None, look)
        assert codes == [0]
        (step,) = json.loads(capsys.readouterr().out)["steps"]
        assert main(["trace", "--coordinator", cluster.address, "--steps", "5"]) == 0
        shown = capsys.readouterr().out
        assert main(["trace", "--coordinator", cluster.address, "--step", "999"]) == 2
        refused = capsys.readouterr().err
    ran = Counter(s["name"] for n in step["nodes"] for s in n["spans"] if s["use"] in ("forward", "backward"))
    prefixes = ("", "p1/")
    expected = {f"{p}{s}{op}{m}" for p in prefixes for s in range(STAGES) for op in "FB" for m in range(MICROBATCHES)}
    assert ran == dict.fromkeys(expected, 1)
    for node in step["nodes"]:
        assert all(a["end"] <= b["begin"] for a, b in pairwise(node["spans"])), "there is one compute thread"
        assert sum(node["seconds"].values()) == pytest.approx(step["seconds"])
        assert any(s["use"] == "apply" for s in node["spans"])
    assert 0.0 < step["ideal_seconds"] < step["seconds"]
    assert all(a["end"] == pytest.approx(b["begin"]) for a, b in pairwise(step["path"]))
    events = json.loads(written.read_text())["traceEvents"]
    assert expected <= {e["name"] for e in events if e["ph"] == "X"}
    assert shown.startswith("steps 25 to 29: median ")
    assert "what the step waited for" in shown
    assert refused.count("\n") == 1
    assert "step 999 is not over yet: the nodes have steps" in refused


def served(step: int, most: int = 100) -> tuple[grpc.Server, str]:
    """A node that has run steps up to this one."""
    kept = Spans(most)
    for number in range(step):
        kept.did(number, unit(0, "F", 0), number, number + 0.5)
        kept.did(number, spans.APPLY, number + 0.6, number + 0.7)
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[RoleInterceptor(), AdmissionInterceptor()])
    Timetables("n0", Schedule(1), 100, lambda: kept.copy(step, lambda: 0.0)).serve(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def status_of(**addresses: str) -> pb.GetStatusResponse:
    status = pb.GetStatusResponse(phase="running")
    status.plan.stages.add(first_layer=0, end_layer=1, owners=list(addresses))
    for node, address in addresses.items():
        status.plan.members.add(node=node, incarnation=1, address=address)
    return status


def test_a_step_that_is_no_longer_kept_is_told_with_those_that_are() -> None:
    server, address = served(10, most=10)
    try:
        assert gather(status_of(n0=address)).timetables[0].step == 9
        with pytest.raises(JobError, match="step 2 is no longer kept: the nodes have steps 6 to 9"):
            gather(status_of(n0=address), 2)
        assert [t.step for t in gather(status_of(n0=address), 8, 100).timetables] == [6, 7, 8]
    finally:
        server.stop(None)


def test_a_node_of_an_older_version_is_told_in_words() -> None:
    server, address = served(3)
    old = grpc.server(ThreadPoolExecutor(1))
    port = old.add_insecure_port("127.0.0.1:0")
    old.start()
    try:
        gathered = gather(status_of(n0=address, n1=f"127.0.0.1:{port}"))
        assert [lane.node for lane in gathered.timetables[0].lanes] == ["n0"]
        assert "keeps no timetable" in gathered.silent["n1"]
        with pytest.raises(JobError, match="no node answers: n1 runs a version of Culm that keeps no timetable"):
            gather(status_of(n1=f"127.0.0.1:{port}"))
    finally:
        server.stop(None)
        old.stop(None)


def test_nobody_to_ask_is_told() -> None:
    for phase, mend in (("waiting", "wait until it trains"), ("done", "ask while the nodes are there")):
        with pytest.raises(JobError, match=f"no node holds a stage, so there is no timetable; {mend}"):
            gather(pb.GetStatusResponse(phase=phase))


def test_an_absurd_step_is_refused() -> None:
    server, address = served(3)
    try:
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
            list(TimetablesStub(channel).GetTimetable(stage_pb2.GetTimetableRequest(step=2**63)))
        assert "the run has 100 steps" in str(refused.value)
        with grpc.insecure_channel(address) as channel:
            raw = cast(Any, channel.unary_stream("/culm.v1.Timetables/GetTimetable"))
            with pytest.raises(grpc.RpcError) as refused:
                list(raw(b"\xff\xff"))
        assert "are not a message of this method" in str(refused.value)
    finally:
        server.stop(None)

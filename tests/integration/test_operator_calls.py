"""What an operator asks over real gRPC, and what is refused in words."""

import time
from collections.abc import Awaitable
from dataclasses import replace

import grpc
import pytest

from culm.coordinator.state import Phase
from culm.protos import coordinator_pb2 as pb
from tests.integration.test_coordinator_service import Cluster, run


async def refused(call: Awaitable[object]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.details() or ""


def test_a_run_that_waits_is_paused_and_let_go_on() -> None:
    async def scenario(running: Cluster) -> None:
        before = time.time()
        await running.stub.Pause(pb.PauseRequest(who="ada@laptop"))
        status = await running.stub.GetStatus(pb.GetStatusRequest())
        assert (status.phase, status.pause.who) == ("waiting", "ada@laptop")
        assert before <= status.pause.since <= time.time()
        assert status.detail.startswith("paused by ada@laptop at ")
        n0, _ = await running.pair()
        status = await running.until(lambda s: s.phase == "paused")
        assert status.plan.pause.who == "ada@laptop"
        await running.stub.Resume(pb.ResumeRequest(who="bob@laptop"))
        plan = (await n0.hear("plan")).plan
        assert not plan.HasField("pause")
        assert (await running.until(lambda s: s.phase == "running")).pause == pb.Pause()
        kinds = [event.kind for event in await running.events()]
        assert kinds.index("paused") < kinds.index("unpaused")

    run(scenario)


def test_a_run_that_pauses_before_its_first_step_has_nothing_to_save() -> None:
    async def scenario(running: Cluster) -> None:
        settings = replace(running.leader.state.settings, checkpoint_url="file:///culm")
        running.leader._state = replace(running.leader.state, settings=settings)
        await running.stub.Pause(pb.PauseRequest(who="ada@laptop"))
        await running.pair()
        await running.until(lambda s: s.phase == "paused")
        save = running.stub.SaveCheckpoint(pb.SaveCheckpointRequest(who="ada"))
        assert "no step is trained yet, so there is nothing to be saved: the run is paused" in await refused(save)

    run(scenario)


def test_a_run_that_failed_in_its_closing_step_names_its_last_checkpoint_and_no_other_one() -> None:
    async def scenario(running: Cluster) -> None:
        settings = replace(running.leader.state.settings, checkpoint_url="file:///culm")
        trained = replace(running.leader.state, settings=settings, phase=Phase.FAILED, committed=settings.steps)
        running.leader._state = trained
        request = pb.SaveCheckpointRequest(who="ada")
        assert (await running.stub.SaveCheckpoint(request)).step == settings.steps
        running.leader._state = replace(trained, committed=settings.steps - 1)
        assert "the run has failed" in await refused(running.stub.SaveCheckpoint(request))

    run(scenario)


def test_what_cannot_be_done_is_refused_with_the_mend() -> None:
    async def scenario(running: Cluster) -> None:
        save = running.stub.SaveCheckpoint(pb.SaveCheckpointRequest(who="ada"))
        assert "the job has no [checkpoint] section: add one with url" in await refused(save)
        pause = running.stub.Pause(pb.PauseRequest(who="a" * 1000))
        assert "who asks has 1000 characters" in await refused(pause)
        budget = running.stub.Resume(pb.ResumeRequest(budget=float("nan")))
        assert "the budget is nan" in await refused(budget)
        late = running.stub.Resume(pb.ResumeRequest(stop_at=1.0))
        assert "1970-01-01 00:00:01 UTC has passed" in await refused(late)

    run(scenario)


def test_what_nodes_tell_beside_their_work_can_be_asked_for() -> None:
    async def scenario(running: Cluster) -> None:
        n0, n1 = await running.pair()
        took = pb.Resources(seconds=5.0, cpu_seconds=2.5, processors=2.0, resident_bytes=7, memory_bytes=9)
        line = pb.LogLine(number=1, time=1e9, level=pb.LOG_LEVEL_WARNING, logger="culm.node", text="slow\x1b[31m")
        await n0.say(heartbeat=pb.Heartbeat(resources=took, log_lines=[line]))
        await n0.say(heartbeat=pb.Heartbeat(instruction="0F1"))
        await n1.say(heartbeat=pb.Heartbeat(instruction="1F1"))  # as a node of before
        status = await running.until(lambda s: s.nodes[0].instruction == "0F1" and s.nodes[1].instruction == "1F1")
        assert status.nodes[0].resources == took, "what was told last stays"
        assert not status.nodes[1].HasField("resources")
        answer = await running.stub.ListLogLines(pb.ListLogLinesRequest(node="n0"))
        assert [(kept.node, kept.incarnation, kept.line.text) for kept in answer.lines] == [("n0", 1, "slow")]
        assert list(answer.nodes) == ["n0"]
        bad = running.stub.ListLogLines(pb.ListLogLinesRequest(node="[red]"))
        assert "the node is '[red]', which is not a valid name" in await refused(bad)

    run(scenario)

"""``culm verify`` counts every node that obeyed an order to die, also where the death is seen late."""

from pathlib import Path
from typing import Any, cast

from culm.oracle.verification import Killer
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

JOB = load_job(Path(__file__).parents[2] / "examples" / "digits_mlp.toml", ["job.steps=40"])


class Orders:
    def __init__(self) -> None:
        self.given: list[pb.KillRequest] = []

    def Kill(self, request: pb.KillRequest, **_: Any) -> None:  # noqa: N802 - as the service names it
        self.given.append(request)


def at_step(step: int) -> pb.GetStatusResponse:
    names = [f"n{i}" for i in range(JOB.pipeline.stages)]
    return pb.GetStatusResponse(
        phase="running",
        step=step,
        steps=40,
        nodes=[pb.NodeStatus(id=name) for name in names],
        plan=pb.Plan(stages=[pb.StagePlan(owners=[name]) for name in names]),
    )


def test_a_death_that_is_seen_after_its_step_is_counted_as_its_own_kill() -> None:
    killer, orders = Killer(JOB, 2, 4, 40), Orders()  # of this seed the first two orders go to two nodes
    stub = cast(CoordinatorStub, orders)
    killer.watch(stub, at_step(9), [])
    (first,) = orders.given
    killer.watch(stub, at_step(30), [])  # its step is over: another order is given
    second = orders.given[-1]
    assert len(orders.given) == 2
    assert first.at.startswith("11:")
    assert second.at.startswith("34:"), "the next order is given further ahead, so that it is not too late as well"
    deaths = [(first.node, 1.0)]
    killer.watch(stub, at_step(30), deaths)
    assert [str(kill) for kill in killer.done] == [f"{first.node}@{first.at}"]
    killer.watch(stub, at_step(34), [*deaths, (second.node, 2.0)])
    assert [str(kill) for kill in killer.done] == [f"{x.node}@{x.at}" for x in (first, second)]

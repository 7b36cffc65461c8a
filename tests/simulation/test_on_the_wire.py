"""Histories in which reports and orders pass through the real messages, and what looks at those where they arrive.

Elsewhere the simulated ones are passed on as they are. So a bound that refuses what an honest node says, or a field
that a message lacks, would show in no other history.
"""

from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import pytest
from google.protobuf.message import Message

from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.commands import SendCommit, SendPlan
from culm.coordinator.edges.translation import order_of, report_of
from culm.coordinator.report_bounds import problem
from culm.pipeline.commit import Commit
from culm.pipeline.plan import Plan
from culm.pipeline.plan_bounds import commit_problem, plan_problem
from culm.pipeline.plan_codec import commit_from_proto, plan_from_proto
from culm.protos import coordinator_pb2 as pb
from culm.simulator.histories.simulated_attendance import SimulatedAttendance
from culm.simulator.histories.simulated_coordinators import Leader
from culm.stage_server.streams import attend_messages
from culm.stage_server.worker.effects import ReportCaughtUp, ReportReady, ReportResumed
from tests.simulation.test_everything import SOAK, history_of_everything
from tests.simulation.test_features_together import history_of_features, history_of_features_on_a_graph
from tests.simulation.test_grid import history_of_the_grid

AnyMessage = TypeVar("AnyMessage", bound=Message)


def sent(message: AnyMessage) -> AnyMessage:
    return type(message).FromString(message.SerializeToString())


def as_received(order: Plan, plan: Plan) -> Plan:
    """With what a node knows of its job, and no message tells. Raises AssertionError if anything else is not there."""
    received = plan.of_job(order.ties, order.audit, order.neighbours)
    assert received == order
    return received


def pass_on(attendance: SimulatedAttendance, message: pb.AttendRequest, told: reports.Report) -> None:
    leader = attendance.leader
    if leader is None:
        return

    def arrive() -> None:
        assert not leader.alive or problem(leader.state, message) == ""
        leader.take(told)

    attendance._up.send(arrive)


def report(self: SimulatedAttendance, fact: ReportReady | ReportCaughtUp | ReportResumed) -> None:
    if isinstance(fact, ReportReady):  # digests here are Python's hashes, which may be negative
        fact = replace(fact, states=tuple(each % (1 << 64) for each in fact.states))
    message = sent(attend_messages.fact(fact))
    told = report_of(self._node.name, self._node.incarnation, message)
    assert told is not None
    pass_on(self, message, told)


def tell(self: SimulatedAttendance, said: reports.Report) -> None:
    if not isinstance(said, reports.Available):
        if self.leader is not None:
            self._up.send(partial(self.leader.take, said))
        return
    known = pb.Available(
        layer_parameters=map(int, said.layer_costs),
        layer_seconds=said.layer_seconds,
        layer_state_bytes=[each.state for each in said.layer_bytes],
        layer_gradient_bytes=[each.gradient for each in said.layer_bytes],
        layer_boundary_bytes=[each.boundary for each in said.layer_bytes],
        memory_bytes=said.memory_bytes,
    )
    worker: Any = self._node.worker  # of numbers, in place of tensors
    message = sent(attend_messages.available(known, worker))
    told = report_of(said.node, said.incarnation, message)
    assert isinstance(told, reports.Available)
    pass_on(self, message, replace(told, identity=said.identity, layer_costs=said.layer_costs))


def order(self: Leader, name: str, ordered: Plan | Commit | None) -> None:
    world = self.world
    if isinstance(ordered, Plan):
        message = sent(order_of(SendPlan(name, ordered)) or pb.AttendResponse())
        assert plan_problem(message.plan, world.layers, world.end, world.pipelines) == ""
        ordered = as_received(ordered, plan_from_proto(message.plan))
    elif ordered is not None:
        message = sent(order_of(SendCommit(name, ordered)) or pb.AttendResponse())
        assert commit_problem(message.commit, world.layers, world.end, world.pipelines, world.form) == ""
        received = commit_from_proto(message.commit)
        if ordered.next_plan is not None and received.next_plan is not None:
            received = replace(received, next_plan=as_received(ordered.next_plan, received.next_plan))
        for each in fields(ordered):
            told, said = getattr(received, each.name), getattr(ordered, each.name)
            assert told == said or repr(told) == repr(said), each.name  # by text: a loss may be NaN
        ordered = received
    ORDER(self, name, ordered)


ORDER = Leader._order


@pytest.fixture
def _on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedAttendance, "report", report)
    monkeypatch.setattr(SimulatedAttendance, "tell", tell)
    monkeypatch.setattr(Leader, "_order", order)


HISTORIES = [history_of_everything, history_of_the_grid, history_of_features, history_of_features_on_a_graph]


@pytest.mark.usefixtures("_on_the_wire")
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("fifty", range(20 if SOAK else 1))
def test_what_is_passed_on_is_taken_as_it_was_said(fifty: int, history: Any) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 6)):
        cluster = history(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"

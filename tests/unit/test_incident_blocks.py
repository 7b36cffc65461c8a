"""``culm events --incidents``: what went wrong, a block each."""

import io
from datetime import UTC
from typing import Any

from rich.console import Console

from culm.protos import coordinator_pb2 as pb
from culm.terminal.incident_blocks import NOTHING, write
from culm.ui.incidents import Incident
from tests.unit.test_ui_history import a_run_with_a_lost_node, event, folded


def told(incidents: list[Incident], **cost: Any) -> str:
    out = io.StringIO()
    write(Console(file=out, width=40), incidents, pb.GetCostResponse(**cost), UTC)
    return out.getvalue()


def test_a_lost_node_is_a_block() -> None:
    incidents = folded(a_run_with_a_lost_node()).incidents
    (lost,) = incidents
    charge = pb.InterruptionCost(kind="lost", node=lost.node, time=lost.time, seconds=0.5, dollars=0.25)
    head, *lines, empty, count = told(incidents, interruptions=[charge]).splitlines()
    assert head.endswith(f"{lost.node} was lost")
    said = dict(line.strip().split("  ", 1) for line in lines)
    assert said["why"].strip() == lost.why
    assert "declared lost +" in said["then"]
    assert said["then"].endswith(" after the last sign of life")
    assert (said["time lost"].strip(), said["cost"].strip()) == ("0.50 s", "$0.250")
    assert said["instructions redone"].strip() == str(lost.redone)
    assert (empty, count) == ("", "1 incident.")


def test_made_up_money_is_named_as_such() -> None:
    (lost,) = folded(a_run_with_a_lost_node()).incidents
    charge = pb.InterruptionCost(kind="lost", node=lost.node, time=lost.time, dollars=0.25)
    bill = pb.NodeCost(node="n0", machine=pb.Machine(provider="example"))
    assert "$0.250 at example prices" in told([lost], interruptions=[charge], nodes=[bill])


def test_a_calm_run_says_so() -> None:
    assert told([]).strip() == NOTHING


def test_a_coordinator_that_took_over_is_named() -> None:
    named = event(15, 12, "recovered_coordinator", 5, coordinator="culm-0")
    assert "Coordinator culm-0 took over" in told(folded([*a_run_with_a_lost_node(), named]).incidents)

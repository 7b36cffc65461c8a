"""Which nodes are taken for stuck, by what heartbeats tell."""

from dataclasses import replace

from culm.coordinator.decide import begin
from culm.coordinator.detection import of_no_use
from culm.coordinator.state import Node, Settings, State

BEGUN = begin(Settings(stages=2, microbatches=1, steps=9))
LONG = 2 * BEGUN.settings.patience.seconds


def node(name: str, at: str, seconds: float) -> Node:
    """One whose history says that such work takes a tenth of a second."""
    usual = {"median_seconds": 0.1, "deviation_seconds": 0.01, "samples": 20}
    return Node(node=name, incarnation=1, address="", instruction=at, running_seconds=seconds, **usual)  # type: ignore[arg-type]


def lost_of(*nodes: Node) -> set[str]:
    state: State = replace(BEGUN, nodes={n.node: n for n in nodes})
    return set(of_no_use(state, 0.0))


def test_a_node_that_hangs_in_any_usual_work_is_stuck() -> None:
    assert lost_of(node("n0", "1F2", LONG), node("n1", "reduce", 0.1)) == {"n0"}
    assert lost_of(node("n0", "apply", LONG), node("n1", "", 0.0), node("n2", "apply", 0.1)) == {"n0"}


def test_a_step_of_the_optimizer_that_takes_long_everywhere_loses_nobody() -> None:
    assert lost_of(*(node(f"n{i}", "apply", LONG - i) for i in range(3))) == set()

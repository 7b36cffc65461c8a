"""What the coordinator's decisions know of prices, and what they change."""

import os
from dataclasses import replace
from pathlib import Path

from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.billing import Billing
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.node_prices import FREE, NodePrice
from culm.coordinator.reports import Available, Joined, Priced
from culm.coordinator.state import Settings, State
from culm.pipeline.identity import changes
from culm.pipeline.job import load_job
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.machine import Machine
from culm.pipeline.money import kinds
from culm.pipeline.money.codec import Entry
from culm.pipeline.money.ledger import Ledger
from culm.pipeline.times import TimeSplit

JOB = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
DEAR = NodePrice(1.0, 0.02, 0.09, "r")
LAYERS = (LayerBytes(state=16, gradient=4, boundary=1_000_000), LayerBytes(state=16, gradient=4, boundary=16))


def joined(state: State, name: str, zone: str) -> State:
    machine = Machine("aws", "p3.2xlarge", "us-east-1", zone, "spot")
    join = Joined(node=name, incarnation=1, address=f"{name}:1", zone=zone, machine=machine)
    state, _ = advance(state, join, 0.0)
    return state


def available(state: State, name: str) -> State:
    told = Available(node=name, incarnation=1, layer_costs=(1e6, 1e6), layer_bytes=LAYERS)
    state, _ = advance(state, told, 0.0)
    validate(state)
    return state


def test_a_price_is_one_incarnations() -> None:
    state = joined(begin(Settings(stages=1, microbatches=1, steps=1)), "n0", "a")
    known, commands = advance(state, Priced({("n0", 1): DEAR, ("n1", 1): DEAR}), 0.0)
    assert commands == ()
    assert [(n.node, n.price) for n in known.nodes.values()] == [("n0", DEAR)]
    assert advance(state, Priced({("n0", 2): DEAR}), 0.0)[0].nodes["n0"].price == FREE


def test_the_first_plan_says_what_crossing_costs() -> None:
    """Two replicas of two stages, in two zones. A microbatch's activation is known, and passes within a zone."""
    state = begin(Settings(stages=2, microbatches=4, steps=1, pipelines=2, nodes=4))
    for i in range(4):
        state = joined(state, f"n{i}", "ab"[i % 2])
    state, _ = advance(state, Priced({(f"n{i}", 1): DEAR for i in range(4)}), 0.0)
    for i in range(4):
        state = available(state, f"n{i}")
    assert state.plan is not None
    assert [stage.owners for stage in state.plan.stages] == [("n0", "n1"), ("n2", "n3")]
    assert state.plan.reason == (
        "2 stages on 4 nodes, from step 0; "
        "the copies of every stage are in two zones or more; 2 of 2 replicas lie in one zone each; "
        "between zones a step sends 16.0 MB of parameter gradients, and activations at 0 of 2 boundaries; "
        "that costs 0.00032 $ a step"
    )
    again = from_document(to_document(state), state.settings, term=2, now=0.0)
    assert again.layer_bytes == LAYERS


def test_the_ledger_tells_what_the_state_does_not_know() -> None:
    """Also of a node that was priced before this coordinator led."""
    state, ledger = joined(begin(Settings(stages=1, microbatches=1, steps=1)), "n0", "a"), Ledger()
    billing = Billing("")
    assert billing.news(state, ledger) == {}
    node = state.nodes["n0"]
    priced = kinds.Priced(
        node="n0",
        incarnation=1,
        per_hour=0.91,
        on_demand_per_hour=3.06,
        per_gb_zones=0.02,
        per_gb_regions=0.0,
        source="",
    )
    for event in (kinds.Joined(node="n0", incarnation=1, region="us-east-1", zone="a"), priced):
        ledger.take(Entry(sequence=1, time=0.0, kind=event.kind, text="", step=0, generation=0, event=event))
    news = billing.news(state, ledger)
    assert news == {("n0", 1): NodePrice(0.91, 0.02, 0.0, "us-east-1", per_gb_second=0.0000166667)}
    state, _ = advance(state, Priced(news), 0.0)
    assert billing.news(state, ledger) == {}
    assert billing.news(replace(state, nodes={"n0": replace(node, incarnation=2)}), ledger) == {}


def test_nodes_are_looked_at_once_a_second_and_at_once_when_they_are_others() -> None:
    """The coordinator asks twenty times a second. A node that goes between two looks is billed for all it has told."""
    state, billing = joined(begin(Settings(stages=1, microbatches=1, steps=1)), "n0", "a"), Billing("")
    assert billing.due(state, 0.0)
    assert list(billing.records(state, Ledger(), 0.0))
    assert [billing.due(state, at / 20) for at in range(1, 21)] == [False] * 19 + [True]
    list(billing.records(state, Ledger(), 1.0))
    worked = replace(state.nodes["n0"], times=TimeSplit(forward=7.0))
    assert not billing.due(replace(state, nodes={"n0": worked}), 1.05)
    gone = replace(state, nodes={}, changed_at=1.1)
    assert billing.due(gone, 1.1)
    (used,) = [record.event for record in billing.records(gone, Ledger(), 1.1)]
    assert isinstance(used, kinds.Used)
    assert used.forward == 7.0


def test_what_changes_in_the_table_counts_also_where_the_machines_price_stays(tmp_path: Path) -> None:
    """A price for transfer comes later. Then the coordinator starts again, with the right price of the machine."""
    path, dated = tmp_path / "prices.toml", 'date = 2026-11-01\nsource = "here"\n'
    machine = '[[machine]]\nprovider = "aws"\non_demand = 3.0\nspot = '
    transfer = f'[[transfer]]\nprovider = "AWS"\nbetween = "zones"\nper_gb = 0.5\n{dated}'
    state, ledger = joined(begin(Settings(stages=1, microbatches=1, steps=1)), "n0", "a"), Ledger()

    def take(event: kinds.Joined | kinds.Priced) -> None:
        ledger.take(Entry(sequence=1, time=0.0, kind=event.kind, text="", step=0, generation=0, event=event))

    def price(billing: Billing, now: float) -> list[tuple[float, float]]:
        events = [record.event for record in billing.records(state, ledger, now)]
        found = [event for event in events if isinstance(event, kinds.Priced)]
        for event in found:
            take(event)
        return [(event.per_hour, event.per_gb_zones) for event in found]

    take(kinds.Joined(node="n0", incarnation=1))
    path.write_text(f"{machine}1.0\n{dated}")
    billing = Billing(str(path))
    assert price(billing, 0.0) == [(1.0, 0.02)], "the shipped table knows what a gigabyte costs"
    path.write_text(f"{machine}1.0\n{dated}{transfer}")
    os.utime(path, ns=(1, 1))
    assert price(billing, 10.0) == [(1.0, 0.5)]
    assert price(billing, 20.0) == []
    path.write_text(f"{machine}2.0\n{dated}{transfer}")
    again = Billing(str(path))
    assert price(again, 0.0) == [(2.0, 0.5)], "the node has stayed, at a price of the table before"
    assert price(again, 10.0) == []


def test_the_job_asks_for_value_and_no_bit_depends_on_it() -> None:
    usual, job = load_job(JOB), load_job(JOB, ["pipeline.shape_by=value"])
    assert not CoordinatorSettings(job=usual).decisions().by_value
    assert CoordinatorSettings(job=job).decisions().by_value
    assert changes(usual, job) == []

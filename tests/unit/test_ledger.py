"""The ledger: the worked example of docs/cost.md by hand, and that a replayed log gives the live figures."""

import json
import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from culm.commands.cost import in_words
from culm.pipeline.money.codec import of_lines, of_message, to_line
from culm.pipeline.money.counterfactual import History, with_checkpoints
from culm.pipeline.money.ledger import Ledger
from culm.pipeline.money.usage import USES
from culm.protos import coordinator_pb2 as pb

START = 1_000_000.0
USAGE: dict[str, object] = dict.fromkeys(USES, 0.0)


@dataclass
class Log:
    """Writes an event log by hand; times in seconds after the start."""

    events: list[pb.ListEventsResponse] = field(default_factory=list)

    def happens(self, at: float, kind: str, step: int = 0, /, **facts: object) -> None:
        fields = {name: str(value) for name, value in facts.items()}
        number = len(self.events) + 1
        self.events.append(
            pb.ListEventsResponse(sequence=number, time=START + at, kind=kind, text=kind, step=step, fields=fields)
        )

    def joins(self, at: float, node: str, per_hour: float = 0.36, incarnation: int = 1, zone: str = "a") -> None:
        who: dict[str, object] = {"node": node, "incarnation": incarnation}
        self.happens(at, "joined", **who, provider="example", zone=zone, region="r", market="spot")
        self.price(at, node, per_hour, incarnation)

    def price(self, at: float, node: str, per_hour: float, incarnation: int = 1) -> None:
        money: dict[str, object] = {
            "per_hour": per_hour,
            "on_demand_per_hour": 1.08,
            "per_gb_zones": 0.02,
            "per_gb_regions": 0.05,
        }
        self.happens(at, "price", node=node, incarnation=incarnation, source="by hand", **money)

    def plan(self, at: float, step: int = 0) -> None:
        self.happens(at, "plan", step, stage_count=2, samples_per_step=8, tokens_per_step=1024)

    def commits(self, at: float, step: int) -> None:
        self.happens(at, "commit", step + 1, step=step, loss=1.0)

    def loses(self, at: float, node: str, step: int) -> None:
        self.happens(at, "lost", step, node=node, stages="0")

    def figures(self, at: float) -> pb.GetCostResponse:
        ledger = Ledger()
        for event in self.events:
            ledger.take(of_message(event))
        return ledger.figures(START + at)


def worked_example() -> Log:
    """The one of docs/cost.md: two stages, three nodes at 0.36 $/h (0.0001 $ a second), one of them lost."""
    log = Log()
    log.happens(0, "tariff", fixed_per_hour=0.036, restart_seconds=100.0, checkpoint_seconds=10.0)
    for node, zone in (("n0", "a"), ("n1", "b"), ("n2", "a")):
        log.joins(0, node, zone=zone)
    log.plan(10)
    for step in range(4):  # five seconds a step
        log.commits(15 + 5 * step, step)
    used: dict[str, object] = {**USAGE, "forward": 9.0, "backward": 12.0, "sent.n1": 2 * 10**9}
    log.happens(31, "usage", node="n0", incarnation=1, **used)
    log.loses(32, "n1", 4)
    log.commits(37, 4)  # seven seconds instead of five
    log.commits(42, 5)
    log.happens(42, "done", 6)
    return log


def test_the_worked_example_adds_up() -> None:
    cost = worked_example().figures(1e6)
    assert cost.as_of == START + 42
    assert [node.dollars for node in cost.nodes] == pytest.approx([0.0042, 0.0032, 0.0042])
    assert cost.fixed_dollars == pytest.approx(0.00042)
    assert cost.crossing_bytes == 2 * 10**9
    assert cost.transfer_dollars == pytest.approx(0.04)
    assert cost.dollars == pytest.approx(0.0042 + 0.0032 + 0.0042 + 0.00042 + 0.04)
    assert cost.dollars_per_hour == pytest.approx(2 * 0.36 + 0.036)
    assert (cost.samples, cost.tokens) == (48, 6144)
    assert (cost.seconds, cost.useful_seconds) == (32.0, 30.0)
    (lost,) = cost.interruptions
    assert (lost.kind, lost.node, lost.step, lost.seconds) == ("lost", "n1", 4, 2.0)
    # From 30 to 37 s: three nodes for 2 s, two for 5 s, the fixed cost for 7 s, and what was sent: two sevenths of it.
    assert lost.dollars == pytest.approx((2 * 0.0003 + 5 * 0.0002 + 7 * 0.00001 + 0.04) * 2 / 7)
    assert cost.dollars_by_use["forward"] == pytest.approx(0.0009)
    assert cost.dollars_by_use["backward"] == pytest.approx(0.0012)
    assert sum(cost.dollars_by_use.values()) == pytest.approx(0.0042 + 0.0032 + 0.0042)
    assert cost.dollars_per_thousand_samples == pytest.approx(cost.dollars / 0.048)
    assert cost.dollars_per_million_tokens == pytest.approx(cost.dollars / 0.006144)
    assert cost.value == pytest.approx(48 / 3600 / cost.dollars)
    # Two machines on demand for the 30 s, and for as long what this run paid beside its machines in 32 s.
    assert cost.on_demand_dollars == pytest.approx(2 * 1.08 * 30 / 3600 + (0.00042 + 0.04) * 30 / 32)
    # A node is lost 22 s into training: back to 20 s, a restart of 100 s, and the 10 s that are left.
    assert cost.checkpoint_seconds == pytest.approx(22 + 100 + 10)
    assert cost.checkpoint_dollars == pytest.approx(cost.dollars * 132 / 32)


def test_on_demand_pays_for_transfer_too() -> None:
    """At one price a run that loses nothing costs the same on demand, however much it sends between zones."""
    log = Log()
    log.joins(0, "n0", 1.08)
    log.joins(0, "n1", 1.08, zone="b")
    log.plan(0)
    log.commits(10, 0)
    log.happens(15, "usage", node="n0", incarnation=1, **USAGE, **{"sent.n1": 50 * 10**9})
    log.commits(20, 1)
    cost = log.figures(20)
    assert cost.transfer_dollars == pytest.approx(1.0)
    assert cost.on_demand_dollars == pytest.approx(cost.dollars) == pytest.approx(1.0 + 2 * 1.08 * 20 / 3600)


def test_on_demand_takes_as_many_machines_as_ran_the_stages() -> None:
    """Two replicas of two stages on four machines; one is lost, and the stage's other owner does its part too."""
    log = Log()
    for node in ("n0", "n1", "n2", "n3"):
        log.joins(0, node, 1.08)
    whole = "[[0, 1, ['n0', 'n1'], []], [1, 2, ['n2', 'n3'], []]]".replace("'", '"')
    log.happens(0, "plan", stage_count=2, samples_per_step=8, stages=whole)
    for step in range(4):
        log.commits(5 + 5 * step, step)
    assert log.figures(20).on_demand_dollars == pytest.approx(4 * 1.08 * 20 / 3600)
    ledger = Ledger()
    for event in log.events:
        ledger.take(of_message(event))
    ledger = Ledger.from_document(json.loads(json.dumps(ledger.to_document())))  # another coordinator takes over
    less = whole.replace("n1", "n0")
    log.happens(20, "plan", 4, stage_count=2, samples_per_step=8, stages=less)
    log.commits(25, 4)
    for event in log.events[-2:]:
        ledger.take(of_message(event))
    dollars = (4 * 20 + 3 * 5) * 1.08 / 3600
    assert log.figures(25).on_demand_dollars == ledger.figures(START + 25).on_demand_dollars == pytest.approx(dollars)


def test_a_pause_costs_its_own_money_and_no_step_s_time() -> None:
    log = Log()
    log.joins(0, "n0")
    log.joins(0, "n1")
    log.plan(10)
    for step in range(4):  # five seconds a step
        log.commits(15 + 5 * step, step)
    log.happens(30, "paused", 4, who="ada")
    log.loses(60, "n1", 4)
    log.joins(70, "n1", incarnation=2)
    log.happens(130, "unpaused", 4, who="ada")
    log.commits(137, 4)  # seven seconds: it is the lost node's step
    cost = log.figures(137)
    pause, lost = cost.interruptions
    assert (pause.kind, pause.time, pause.step, pause.seconds) == ("pause", START + 30, 4, 100.0)
    assert pause.dollars == pytest.approx(100 * 0.0001 + 90 * 0.0001), "two nodes, but for ten seconds"
    assert (lost.kind, lost.seconds) == ("lost", 2.0)
    assert (cost.seconds, cost.useful_seconds) == (127.0, 25.0)
    ledger = Ledger.from_document(json.loads(json.dumps(Ledger().to_document())))
    for event in log.events[:-2]:
        ledger.take(of_message(event))
    ledger = Ledger.from_document(json.loads(json.dumps(ledger.to_document())))  # a coordinator takes over in the pause
    for event in log.events[-2:]:
        ledger.take(of_message(event))
    assert ledger.figures(START + 137) == cost


def test_a_log_that_was_written_down_gives_the_same_figures_to_the_bit() -> None:
    log = worked_example()
    lines = [to_line(event) for event in log.events]
    replayed = Log(list(of_lines(lines, "log")))
    assert replayed.figures(42).SerializeToString(deterministic=True) == log.figures(42).SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("seed", range(50))
def test_asking_in_between_changes_nothing_and_the_parts_are_the_whole(seed: int) -> None:
    chance = random.Random(seed)
    log, at, step, born = Log(), 0.0, 0, 0
    alive: list[str] = []
    log.happens(0, "tariff", fixed_per_hour=0.1, restart_seconds=30.0, checkpoint_seconds=60.0)
    for number in range(200):
        at += chance.expovariate(0.5)
        what = chance.choice(["commit", "commit", "commit", "join", "lose", "leave", "price", "usage", "rollback"])
        if what == "join" or not alive:
            born += 1
            alive.append(f"n{born}")
            log.joins(at, alive[-1], chance.uniform(0.1, 3.0), zone=chance.choice("ab"))
            if number == 0:
                log.plan(at)
        elif what == "commit":
            log.commits(at, step)
            step += 1
        elif what in ("lose", "leave"):
            gone = alive.pop(chance.randrange(len(alive)))
            log.happens(at, {"lose": "lost", "leave": "left"}[what], step, node=gone, stages="0")
        elif what == "price":
            log.price(at, chance.choice(alive), chance.uniform(0.1, 3.0))
        elif what == "usage":
            used: dict[str, object] = {**USAGE, "forward": at / 10, f"sent.{chance.choice(alive)}": int(1e6 * at)}
            log.happens(at, "usage", node=chance.choice(alive), incarnation=1, **used)
        elif what == "rollback":
            step = chance.randrange(step + 1)
            log.happens(at, "rollback", step, step=step)
    ledger, live = Ledger(), []
    for event in log.events:
        ledger.take(of_message(event))
        live.append(ledger.figures(event.time).dollars)
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(live)), "money never comes back"
    cost = ledger.figures(START + at + 1)
    assert cost == log.figures(at + 1)
    nodes = sum(node.dollars for node in cost.nodes)
    assert cost.dollars == pytest.approx(nodes + cost.fixed_dollars + cost.transfer_dollars)
    assert cost.useful_seconds <= cost.seconds
    assert cost.samples == 8 * step


def test_a_rollback_is_charged_with_all_since_its_checkpoint_and_nothing_twice() -> None:
    log = Log()
    log.joins(0, "n0")
    log.plan(0)
    for step in range(6):
        log.commits(10.0 * (step + 1), step)
    log.loses(62, "n0", 6)
    log.happens(63, "rollback", 4, step=4)
    log.joins(80, "n1")
    log.plan(80, 4)
    log.commits(95, 4)
    cost = log.figures(95)
    # Step 4 was first committed at 50 s, after 40 s; it is trained again at 95 s: 55 s, of which a calm step takes 10.
    (rollback,) = cost.interruptions
    assert (rollback.kind, rollback.seconds) == ("rollback", 45.0)
    assert (cost.samples, cost.useful_seconds) == (40, 50.0)


def test_the_time_without_a_coordinator_is_lost() -> None:
    """It was stopped for seven seconds, and the goodput was told as 99.98 %."""
    log = Log()
    log.joins(0, "n0")
    log.plan(0)
    for step in range(4):
        log.commits(float(step + 1), step)
    log.happens(11.0, "recovered_coordinator", 4)
    log.commits(12.0, 4)
    cost = log.figures(12)
    (stop,) = cost.interruptions
    assert (stop.kind, stop.node, stop.seconds) == ("coordinator", "", 7.0)
    assert cost.useful_seconds == 5.0


def test_a_price_that_changes_counts_from_then_on() -> None:
    log = Log()
    log.joins(0, "n0", 3.6)
    log.price(100, "n0", 7.2)
    assert log.figures(200).dollars == pytest.approx(0.1 + 0.2)


def test_a_node_without_a_price_is_named() -> None:
    log = Log()
    log.happens(0, "joined", node="n0", incarnation=1)
    cost = log.figures(3600)
    assert (cost.dollars, list(cost.unpriced)) == (0.0, ["n0"])


def test_a_node_that_was_started_again_is_paid_once() -> None:
    log = Log()
    log.joins(0, "n0", 3.6)
    log.joins(50, "n0", 3.6, incarnation=2)  # the end of the first is not in the log: its leader died
    assert log.figures(100).dollars == pytest.approx(0.1)


def test_with_checkpoints_training_stands_still_while_nodes_are_too_few() -> None:
    history = History(begun=0.0, restart_seconds=10.0, checkpoint_seconds=25.0)
    history.nodes(0.0, 2)
    history.lost(40.0)
    history.nodes(40.0, 1)
    history.nodes(100.0, 2)
    # 40 s done, back to 25; nothing until 100; the other 75 s then.
    assert with_checkpoints(history, 100.0, 2) == 175.0


def test_with_checkpoints_a_loss_during_a_restart_begins_it_anew() -> None:
    history = History(begun=0.0, restart_seconds=10.0, checkpoint_seconds=25.0)
    history.nodes(0.0, 3)
    for at in (30.0, 35.0):
        history.lost(at)
    assert with_checkpoints(history, 50.0, 2) == 45.0 + 25.0


def test_a_loss_is_of_the_step_that_it_happened_in() -> None:
    log = Log()
    log.joins(0.0, "n0")
    log.joins(0.0, "n1")
    log.plan(0.0)
    log.commits(10.0, 0)
    log.happens(15.0, "lost", 2, node="n1", stages="0", step=1)  # the next commit was decided with it
    log.commits(20.0, 1)
    assert [x.step for x in log.figures(20.0).interruptions] == [1]


def test_a_run_that_goes_back_behind_its_first_plan_goes_on_counting() -> None:
    """Resumed from step 100 it rolled back to 90; or Redis lost the plans before."""
    log = Log()
    log.joins(0.0, "n0", 3.6)
    log.happens(0.0, "plan", 100, stage_count=1, samples_per_step=8)
    log.commits(10.0, 100)
    log.happens(15.0, "rollback", 90, step=90)
    log.commits(20.0, 90)
    log.commits(30.0, 91)
    figures = log.figures(30.0)
    assert figures.samples == 16
    assert figures.dollars == pytest.approx(0.03)


def test_a_commit_below_all_that_is_on_record_counts() -> None:
    log = Log()
    log.joins(0.0, "n0", 3.6)
    log.happens(0.0, "plan", 7, stage_count=1, samples_per_step=8)
    log.commits(10.0, 3)
    assert log.figures(10.0).samples == 8


def test_a_ledger_goes_on_from_its_document() -> None:
    events = worked_example().events
    whole = Ledger()
    for event in events:
        whole.take(of_message(event))
    for cut in range(len(events)):
        before = Ledger()
        for event in events[:cut]:
            before.take(of_message(event))
        after = Ledger.from_document(json.loads(json.dumps(before.to_document())))
        for event in events[cut:]:
            after.take(of_message(event))
        assert after.figures(START + 1e4) == whole.figures(START + 1e4), f"cut before event {cut}"


def test_nodes_that_come_and_go_for_ever_are_bounded_and_all_of_them_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("culm.pipeline.money.lives.LIVES_KEPT", 10)
    log = Log()
    for i in range(100):
        log.joins(100.0 * i, f"n{i}", 3.6)
        log.happens(100.0 * i + 50.0, "left", node=f"n{i}")
    figures = log.figures(1e5)
    assert len(figures.nodes) <= 11
    assert figures.dollars == pytest.approx(100 * 0.05)


def test_figures_say_whether_the_run_is_over() -> None:
    """Its nodes stay for the final weights or go: neither counts, and what they cost is of the end."""
    log = worked_example()
    over = log.figures(3600)
    assert over.dollars == log.figures(42).dollars
    assert in_words(over)[0] == "whole run       $0.0520, $0.7560 an hour at its end; what came after is not counted"
    log.events.pop()
    assert in_words(log.figures(42))[0] == "so far          $0.0520, now $0.7560 an hour"


def test_tensor_workers_are_paid_by_what_their_server_tells() -> None:
    log = worked_example()
    del log.events[-1]
    before = log.figures(42).dollars
    for at, node, incarnation, gb_seconds, price in (
        (42, "n0", 1, 100.0, 1e-5),
        (42, "n0", 1, 300.0, 2e-5),  # the first hundred are paid at the first price
        (42, "n1", 1, 50.0, 1e-5),  # it is lost, and this its last word
        (42, "n9", 1, 50.0, 1e-5),  # nobody knows it
    ):
        sums: dict[str, object] = {"gigabyte_seconds": gb_seconds, "per_gigabyte_second": price}
        log.happens(at, "usage", node=node, incarnation=incarnation, **USAGE, **sums)
    figures = log.figures(42)
    assert figures.worker_gigabyte_seconds == 350.0
    assert figures.worker_dollars == pytest.approx(100 * 1e-5 + 200 * 2e-5 + 50 * 1e-5)
    assert figures.dollars == pytest.approx(before + figures.worker_dollars)
    assert any(line.startswith("tensor workers  350 GB-seconds, $0.0055") for line in in_words(figures))


def test_an_hour_of_tensor_workers_is_what_they_cost_lately() -> None:
    log = Log()
    log.joins(0, "n0", per_hour=0.36)
    for at, gb_seconds in ((10, 20.0), (20, 60.0)):
        sums: dict[str, object] = {"gigabyte_seconds": gb_seconds, "per_gigabyte_second": 1e-5}
        log.happens(at, "usage", node="n0", incarnation=1, **USAGE, **sums)
    assert log.figures(30).dollars_per_hour == pytest.approx(0.36 + 4.0 * 1e-5 * 3600)
    log.loses(31, "n0", 0)
    assert log.figures(32).dollars_per_hour == 0.0

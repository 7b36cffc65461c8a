"""The event log keeps what it can, counts what it can read, and never stops who decides."""

import asyncio
import base64
import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest

from culm.coordinator.commands import Commit
from culm.coordinator.decisions import commit_records
from culm.coordinator.edges import event_log, kept_commits
from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.edges.store import MemoryStore, StoreAway
from culm.coordinator.state import Settings
from culm.pipeline.money.codec import Entry, to_fields, to_message, to_stored
from culm.pipeline.money.kinds import (
    Committed,
    Joined,
    Lost,
    Measured,
    Planned,
    Priced,
    RolledBack,
    Used,
    Waiting,
    words_of,
)
from culm.protos import coordinator_pb2 as pb

PLANNED = Planned(generation=1, steps=9, stage_count=1, stages=(), samples_per_step=8)
PLAN = to_fields(PLANNED)


def commit(log: EventLog, step: int, loss: float = 0.5) -> None:
    (record,) = commit_records(
        Settings(stages=1, microbatches=1, steps=1000), Commit(term=1, era=0, step=step, scale=1.0, loss=loss)
    )
    log.record(record.event, record.text, step + 1, 1)


async def opened(store: MemoryStore, term: int = 1) -> EventLog:
    log = EventLog(store, term, lambda: 100.0)
    await log.read_before()
    return log


def steps(log: EventLog) -> list[int]:
    told = [event.fields["step"] for event in log.since(0) if event.kind == "commit"]
    return [int(step) for step in told if step.isdigit()]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("commit", {}),
        ("commit", {"step": "many", "loss_hex": "0x1p0", "scale": "1.0", "loss": "1.0"}),
        ("commit", {"step": "-3", "loss_hex": "0x1p0", "scale": "1.0", "loss": "1.0"}),
        ("rollback", {"step": ""}),
        ("plan", {**PLAN, "stage_count": "two"}),
        ("lost", {}),
        ("price", {"node": "n0"}),
        ("usage", {"node": "n0", "incarnation": "x"}),
        ("hot", {"stage": "0", "exposure_ms": "long"}),
        ("of a later version", {"what": "nobody knows"}),
    ],
)
def test_an_event_that_cannot_be_read_is_set_aside(kind: str, fields: dict[str, str]) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        log = await opened(store)
        log.record(PLANNED, "1 node", 0, 1)
        log.record(Joined(node="n0", incarnation=1), "n0 joined", 0, 1)
        other = pb.ListEventsResponse(sequence=3, time=100.0, kind=kind, text="of another version", fields=fields)
        store.append("events", to_stored(other))
        for term in (2, 3):
            log = await opened(store, term)
            commit(log, 0)
            assert kind in [event.kind for event in log.since(0)]
            assert 0 in steps(log)
            assert log.ledger.figures(101.0).samples == 8

    asyncio.run(scenario())


def test_what_cannot_be_read_is_told_once_a_kind(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        for number in range(1, 100, 2):
            for kind, fields in (("lost", {}), ("plan", {**PLAN, "stage_count": "two"})):
                number += kind == "plan"
                event = pb.ListEventsResponse(sequence=number, time=100.0, kind=kind, text="x", fields=fields)
                store.append("events", to_stored(event))
        await opened(store, 2)

    asyncio.run(scenario())
    assert len([r for r in caplog.records if "left it out" in r.message and "'plan'" in r.message]) == 1


def test_an_entry_that_is_no_event_keeps_no_successor_from_leading() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        commit(await opened(store), 0)
        for entry in ({}, {"sequence": "x"}, {"sequence": "-1", "time": "0", "kind": "commit"}, {"time": "nan"}):
            store.append("events", dict(entry))
        assert steps(await opened(store, 2)) == [0]

    asyncio.run(scenario())


@pytest.mark.parametrize("summary", ["", "{", "[]", '{"sequence": 3}', json.dumps({"ledger": {}, "sequence": "x"})])
def test_a_summary_that_cannot_be_read_counts_for_nothing(summary: str) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        commit(await opened(store), 0)
        store.put("summary", summary)
        assert steps(await opened(store, 2)) == [0]

    asyncio.run(scenario())


class Away(MemoryStore):
    """Of its reads so many that come next are not answered."""

    away = 0

    async def get(self, name: str) -> str | None:
        if self.away:
            self.away -= 1
            raise StoreAway("Redis is loading")
        return await super().get(name)


async def that_has_cost_ten_dollars_an_hour_later(store: MemoryStore) -> None:
    log = await opened(store)
    log.record(Joined(node="n0", incarnation=1), "n0 joined", 0, 0)
    priced = Priced(
        node="n0", incarnation=1, per_hour=10, on_demand_per_hour=20, per_gb_zones=0, per_gb_regions=0, source=""
    )
    log.record(priced, "n0 costs 10 $/h", 0, 0)
    log.sum_up()
    store.streams.clear()  # as of a long run: what the summary counts has gone from the streams


def test_an_outage_of_the_store_in_a_takeover_costs_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "READ_PAUSE", 0.0)

    async def scenario() -> None:
        await that_has_cost_ten_dollars_an_hour_later(store := Away())
        store.away = 100
        log = EventLog(store, 2, lambda: 100.0)
        reading = asyncio.create_task(log.read_before())
        while store.away > 10 and not reading.done():
            await asyncio.sleep(0)
        log.sum_up()
        assert math.isnan(log.dollars(3700.0))
        assert math.isnan(log.figures(3700.0).dollars)
        await reading
        assert log.dollars(3700.0) == log.figures(3700.0).dollars == 10.0

    asyncio.run(scenario())


def test_a_leader_that_never_read_what_came_before_records_all_the_same_and_leaves_the_summary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "READ_PAUSE", 0.0)
    monkeypatch.setattr(event_log, "WAITING_MOST", 1)

    async def scenario() -> None:
        await that_has_cost_ten_dollars_an_hour_later(store := Away())
        store.away = 100
        log = EventLog(store, 2, lambda: 100.0)
        commit(log, 3)
        await log.read_before()
        commit(log, 4)
        assert steps(log) == [3, 4]
        log.sum_up()
        store.away = 0
        successor = await opened(store, 3)
        assert successor.dollars(3700.0) == 10.0
        assert steps(successor) == [3, 4]

    asyncio.run(scenario())


def test_events_before_come_first_and_a_commit_that_is_told_again_counts_once() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        first = await opened(store)
        for step in range(3):
            commit(first, step)
        second = EventLog(store, 2, lambda: 100.0)
        commit(second, 2)  # told by a node, before the history is read
        commit(second, 3)
        await second.read_before()
        assert steps(second) == [0, 1, 2, 3]
        numbers = [event.sequence for event in second.since(0)]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] > 1 << event_log.TERM_BITS

    asyncio.run(scenario())


def test_after_a_rollback_the_same_commit_is_on_record_again() -> None:
    async def scenario() -> None:
        log = await opened(MemoryStore())
        commit(log, 0)
        log.record(RolledBack(step=0, era=1), "from step 0", 0, 1)
        commit(log, 0)
        assert [event.kind for event in log.since(0)] == ["commit", "rollback", "commit"]

    asyncio.run(scenario())


def test_what_is_kept_has_a_bound_and_the_curve_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_commits, "COMMITS_KEPT", 100)
    for name, bound in (("KEPT", 50), ("USAGE_KEPT", 20), ("SUMMARY_EVERY", 64)):
        monkeypatch.setattr(event_log, name, bound)

    async def scenario() -> None:
        log = await opened(store := MemoryStore())
        used = Used(node="n0", incarnation=1, forward=1, backward=1, redundant=1, apply=1, bubble=1, idle=1)
        for step in range(1000):
            commit(log, step, 1.0 / (step + 1))
            log.record(Waiting(), "for a node", step, 1)
            log.record(used, "n0 has worked", step, 1)
        kept: dict[str, list[Any]] = {}
        for event in log.since(0):
            kept.setdefault(event.kind, []).append(event)
        assert (len(kept["waiting"]), len(kept["usage"])) == (50, 20)
        assert len(kept["commit"]) <= 100
        assert steps(log)[-30:] == list(range(970, 1000)), "the newest are all there"
        assert steps(log)[0] < 100, "the oldest are thinned out, not gone"
        assert steps(await opened(store, 2))[-1] == 999

    asyncio.run(scenario())


def test_a_slow_reader_is_told_what_is_kept_though_the_log_is_thinned_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_commits, "COMMITS_KEPT", 100)

    async def scenario() -> None:
        log = await opened(MemoryStore())
        for step in range(100):
            commit(log, step)
        reading = log.since(0)
        told = [next(reading).step - 1 for _ in range(10)]
        log.record(Waiting(), "for a node", 100, 1)
        for step in range(100, 151):  # the older half is thinned out once, and once more
            commit(log, step)
        told += [event.step - 1 for event in reading]
        assert told[:10] == list(range(10))
        assert told == sorted(set(told))
        # What came meanwhile is for the next look: a commit of it would hide the event before it.
        assert set(told[10:]) == {step for step in steps(log) if 10 <= step < 100}

    asyncio.run(scenario())


@pytest.mark.parametrize("older", [False, True], ids=["of this version", "of a version before"])
def test_the_counters_of_a_long_run_go_on_where_those_of_the_coordinator_before_end(
    older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "KEPT", 50)

    async def scenario() -> None:
        log = await opened(store := MemoryStore())
        log.record(PLANNED, "1 node", 0, 1)
        for step in range(100):
            commit(log, step)
            log.record(Lost(node="n1", step=step), "n1 is lost", step, 1)
        log.sum_up()
        if older:
            store.texts["summary"] = json.dumps(json.loads(store.texts["summary"]) | {"tally": None})
        store.streams["events"] = store.streams["events"][-50:]
        successor = await opened(store, 2)
        assert successor.tally.lost.value == (50 if older else 100)
        assert sum(successor.tally.steps.counts) == (99 if older else 100)  # the first plan is kept no more
        commit(successor, 100)
        successor.record(Lost(node="n1", step=100), "n1 is lost", 100, 1)
        successor.sum_up()
        assert (await opened(store, 3)).tally.lost.value == (51 if older else 101)

    asyncio.run(scenario())


def test_the_page_on_cost_says_from_when_on_a_log_lacks_events() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
    kept = f"{event_log.USAGE_KEPT:,} `usage` events, {kept_commits.COMMITS_KEPT:,} commits"
    assert kept in page
    assert f"{event_log.KEPT:,} of the other events" in page


@pytest.mark.parametrize("written", [0, 1], ids=["before it was written", "after"])
@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_what_a_commit_measured_is_told_once_by_whoever_leads(written: int, value: float) -> None:
    measured = [Measured(step=step, metrics={"accuracy": value}) for step in range(3)]

    async def scenario() -> None:
        log = await opened(store := MemoryStore())
        for said in measured[: 2 + written]:
            log.record(said, words_of(said), said.step + 1, 1)
        successor = EventLog(store, 2, lambda: 100.0)
        successor.begin_after(measured[-1:])
        await successor.read_before()
        told = [event for event in successor.since(0) if event.kind == "measured"]
        assert [(event.step, event.fields["metric.accuracy"]) for event in told] == [(i, str(value)) for i in (1, 2, 3)]

    asyncio.run(scenario())


def test_numbers_of_commits_are_read_from_a_summary_of_before_there_were_norms() -> None:
    commits, read, older = (kept_commits.Commits() for _ in range(3))
    for i in range(3):
        rate = 0.1 * i if i else None
        committed = Committed(step=i, loss=1.0 / (i + 1), scale=0.5, norm=float(i), learning_rate=rate)
        entry = Entry(
            sequence=i + 1, time=9.0, kind="commit", text=words_of(committed), step=i + 1, generation=1, event=committed
        )
        assert commits.add(to_message(entry))
    read.read(commits.to_text(), kept_commits.Commits.COLUMNS)
    assert list(read.since(1)) == list(commits.since(1))
    columns = b"".join(column.tobytes() for column in commits._columns()[: kept_commits.OLDEST_COLUMNS])
    older.read(base64.b64encode(zlib.compress(columns, 1)).decode(), kept_commits.OLDEST_COLUMNS)
    assert [event.fields["norm"] for event in older.since(1)] == ["0.0"] * 3
    assert ["learning_rate" in event.fields for event in older.since(1)] == [False] * 3
    assert [event.fields["loss"] for event in older.since(1)] == [event.fields["loss"] for event in commits.since(1)]


class Clocks:
    """Unix seconds that may be set, and seconds that only pass."""

    def __init__(self, wall: float) -> None:
        self.wall, self.passed = wall, 0.0

    def log(self, store: MemoryStore, term: int) -> EventLog:
        return EventLog(store, term, lambda: self.wall, lambda: self.passed)

    def passes(self, seconds: float) -> None:
        self.wall, self.passed = self.wall + seconds, self.passed + seconds


def test_steps_take_as_long_as_ever_while_the_clock_is_set_back() -> None:
    """It was set back by an hour: steps took less than no time, the run had cost nothing, and its rest took 0 s."""

    async def scenario() -> None:
        clocks = Clocks(wall=10_000.0)
        log = clocks.log(MemoryStore(), 1)
        await log.read_before()
        log.record(PLANNED, "1 node", 0, 1)
        for step in range(8):
            clocks.passes(5.0)
            clocks.wall += {4: -3600.0, 6: 3600.0}.get(step, 0.0)  # set back, and right again
            commit(log, step)
        assert [event.time for event in log.since(0)] == [10_000.0 + 5.0 * i for i in range(9)]
        clocks.passes(1.0)
        figures = log.ledger.figures(log.now())
        assert (figures.as_of, figures.seconds, figures.useful_seconds) == (10_041.0, 41.0, 41.0)
        assert figures.forecast.seconds.expected == 4.0

    asyncio.run(scenario())


@pytest.mark.parametrize("summed_up", [False, True])
def test_a_successor_whose_clock_is_behind_goes_on_from_the_last_event(summed_up: bool) -> None:
    async def scenario() -> None:
        store, ahead, behind = MemoryStore(), Clocks(wall=10_000.0), Clocks(wall=6_400.0)
        first = ahead.log(store, 1)
        await first.read_before()
        first.record(PLANNED, "1 node", 0, 1)
        ahead.passes(5.0)
        commit(first, 0)
        if summed_up:
            first.sum_up()
        second = behind.log(store, 2)
        commit(second, 1)  # before the history is read
        await second.read_before()
        figures = second.ledger.figures(second.now())
        assert (figures.seconds, figures.useful_seconds) == (5.0, 5.0)
        behind.passes(5.0)
        commit(second, 2)
        assert [event.time for event in second.since(0)][-1] == 10_010.0
        assert second.ledger.figures(second.now()).seconds == 10.0

    asyncio.run(scenario())

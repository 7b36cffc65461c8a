"""Traces drawn at random: when machines come and go. The same seed draws the same trace."""

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from culm.simulator.markets.trace import Change

# Two markets. ``hourly`` is the one that Bamboo's simulator draws, so that its published figures can be met. ``zoned``
# has what a user knows of a real one: zones with prices and rates, machines that go in bulk, notices. Each zone has a
# generator of its own, so another zone changes nothing about its machines.
#
# A machine's life is exponential in ``zoned``: it has no memory. It ends early where a bulk takes its place.

HOUR = 3600.0
AT_ONCE = {"add": 0, "notice": 1, "remove": 2}  # the order of what happens in one moment


def hourly(seed: int, capacity: int, removal: float, hours: int) -> list[Change]:
    """The market of Bamboo's released simulator (github.com/uclasystem/bamboo, project_pactum/simulation, 2022).

    At the beginning of each hour every machine goes within it with probability ``removal``, at a moment drawn evenly.
    For every place that is or becomes free one comes within the hour, with a probability that is drawn once for each
    hour of the day; as long as ``capacity`` is not exceeded, and itself may go again in the same hour.
    """
    draw = random.Random(seed)
    arrival = [draw.random() for _ in range(24)]
    changes: list[Change] = []
    here: dict[str, float] = {}
    numbers = count(1)

    def come(at: float) -> str:
        name = f"node{next(numbers)}"
        here[name] = at
        changes.append(Change(at=at, kind="add", node=name))
        return name

    for _ in range(capacity):
        if arrival[0] > draw.random():
            come(0.0)
    for hour in range(hours):
        began = hour * HOUR

        def moment(probability: float, began: float = began) -> float | None:
            return began + draw.randrange(3600) if probability > draw.random() else None

        going = [(at, name) for name in here if (at := moment(removal)) is not None]
        coming = [
            at for _ in range(capacity - len(here) + len(going)) if (at := moment(arrival[hour % 24])) is not None
        ]
        heapq.heapify(going)
        heapq.heapify(coming)
        while going or coming:
            if going and (not coming or going[0][0] < coming[0]):
                at, name = heapq.heappop(going)
                del here[name]
                changes.append(Change(at=at, kind="remove", node=name))
                continue
            at = heapq.heappop(coming)
            if len(here) == capacity:
                continue
            name = come(at)
            gone = moment(removal)
            if gone is not None and gone >= at:
                heapq.heappush(going, (gone, name))
    return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """Machines of one zone: how many are asked for, what one costs, how often they go."""

    name: str
    machines: int
    price: float  # dollars an hour
    lost_per_hour: float  # of one machine
    bulk_per_hour: float = 0.0  # moments when many of the zone go at once
    bulk_share: float = 0.5  # of its machines
    wait_seconds: float = 300.0  # mean, until a machine that went is replaced


def zoned(seed: int, zones: Sequence[Zone], seconds: float, notice_seconds: float = 0.0) -> list[Change]:
    """Each machine's life is drawn from its zone's rate; in bulk a share of a zone goes in one moment.

    ``notice_seconds``: how long before they go machines are told so.
    """
    changes: list[Change] = []
    for zone in zones:
        draw = random.Random(f"{seed}:{zone.name}")
        bulks = _bulks(draw, zone, seconds)
        for place in range(zone.machines):
            at, life = 0.0, 0
            while at < seconds:
                life += 1
                name = f"{zone.name}-{place}.{life}"
                changes.append(Change(at=at, kind="add", node=name, zone=zone.name, price=zone.price))
                gone = at + _exponential(draw, zone.lost_per_hour / HOUR)
                taken = next((when for when, places in bulks.items() if when > at and place in places), gone)
                gone = min(gone, taken)
                if gone < seconds:
                    if notice_seconds:
                        told = max(at, gone - notice_seconds)
                        changes.append(
                            Change(at=told, kind="notice", node=name, zone=zone.name, seconds_left=gone - told)
                        )
                    changes.append(Change(at=gone, kind="remove", node=name, zone=zone.name))
                at = gone + _exponential(draw, 1.0 / zone.wait_seconds)
    return sorted(changes, key=lambda change: (change.at, AT_ONCE[change.kind]))


def shifted(changes: Sequence[Change], offset: float, seconds: float) -> list[Change]:
    """A trace as a run of so many seconds sees it that begins ``offset`` seconds into it, over again at its end.

    Machines of each time round have names of their own; what is there at a round's end goes with it.
    """
    length = changes[-1].at
    found: list[Change] = []
    number = 0
    while number * length - offset <= seconds and (number == 0 or length > 0.0):
        base = number * length - offset
        for come, told, gone in _lives(changes):
            begins, ends = base + come.at, base + (gone.at if gone is not None else length)
            if ends <= 0.0 < length or begins > seconds:
                continue
            name = f"{come.node}/{number}"
            found.append(replace(come, at=max(0.0, begins), node=name))
            if told is not None and 0.0 <= base + told.at <= seconds:
                found.append(replace(told, at=base + told.at, node=name))
            if length > 0.0 and ends <= seconds:
                found.append(Change(at=ends, kind="remove", node=name, zone=come.zone))
        number += 1
    return sorted(found, key=lambda change: (change.at, AT_ONCE[change.kind]))


def _lives(changes: Sequence[Change]) -> list[tuple[Change, Change | None, Change | None]]:
    """Each machine's coming, the notice that it got and its going, if it did."""
    open_: dict[str, list[Change | None]] = {}
    lives = []
    for change in changes:
        if change.kind == "add":
            open_[change.node] = [change, None, None]
            lives.append(open_[change.node])
        else:
            open_[change.node][1 if change.kind == "notice" else 2] = change
    return [(come, told, gone) for come, told, gone in lives if come is not None]


def _bulks(draw: random.Random, zone: Zone, seconds: float) -> Mapping[float, frozenset[int]]:
    """Moment -> the places whose machines go."""
    found: dict[float, frozenset[int]] = {}
    at = _exponential(draw, zone.bulk_per_hour / HOUR)
    while at < seconds:
        found[at] = frozenset(draw.sample(range(zone.machines), round(zone.bulk_share * zone.machines)))
        at += _exponential(draw, zone.bulk_per_hour / HOUR)
    return found


def _exponential(draw: random.Random, rate: float) -> float:
    return draw.expovariate(rate) if rate > 0.0 else float("inf")

"""The flags of ``culm plan`` for machines, prices and lost nodes, and the markets that they describe: one a seed."""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from culm.pipeline.errors import JobError
from culm.pipeline.money.prices import load_prices
from culm.simulator.markets.advice import Draw
from culm.simulator.markets.random_market import Zone, shifted, zoned
from culm.simulator.markets.trace import Change, read_trace
from culm.simulator.markets.ways import Kind, Way
from culm.terminal import flags

KEYS = ("price", "speed", "memory", "hazard")
MACHINE_MEND = "write TYPE, or TYPE,price=0.91,speed=1.5,memory=16,hazard=0.1"
MOST_KINDS = 8


def add_market_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prices",
        "--price",
        default="",
        metavar="$/H[,...]|FILE",
        help="the spot price of a machine, or one for each zone; or, with --machine, a price table to search first",
    )
    parser.add_argument(
        "--machine",
        action="append",
        default=[],
        metavar="TYPE[,KEY=VALUE]...",
        help="a type of machine that could be rented, such as p3.2xlarge; may be repeated. Keys: price ($/h; default: "
        "from the price table), speed (in ratio to the profile's machine; default: 1), memory (GB of its device), "
        "hazard (as --hazard); price and hazard may be one for each zone, such as price=0.91/0.97",
    )
    market = parser.add_mutually_exclusive_group(required=True)
    market.add_argument("--hazard", metavar="R[,...]", help="how often an hour a machine is lost, or one for each zone")
    market.add_argument(
        "--trace", metavar="FILE", help="machines come and go as in this trace; each seed begins at another place in it"
    )
    parser.add_argument(
        "--zones",
        type=flags.whole(1, 1000),
        metavar="Z",
        help="how many zones the machines are in; default: as many as there are prices or hazards",
    )
    parser.add_argument(
        "--traffic", type=flags.number(), default=0.0, metavar="$/GB", help="price of tensors between zones; default: 0"
    )
    parser.add_argument(
        "--bulk",
        type=flags.number(),
        default=0.0,
        metavar="R",
        help="how often an hour half a zone goes at once; default: 0",
    )
    parser.add_argument(
        "--notice",
        type=flags.seconds,
        default=0.0,
        metavar="S",
        help="seconds of notice before a machine goes; default: 0",
    )


def read_kinds(arguments: argparse.Namespace) -> tuple[Kind, ...]:
    """The types of machines that could be rented. Raises JobError."""
    hazards = tuple(_each(arguments.hazard, "--hazard")) if arguments.hazard is not None else ()
    if not arguments.machine:
        if not arguments.prices:
            mend = "give a number, or a --machine that the table knows"
            raise JobError("no price of a machine is given", "--prices", mend)
        return (Kind(prices=tuple(_each(arguments.prices, "--prices")), hazards=hazards),)
    if arguments.prices and _is_number(arguments.prices.split(",")[0]):
        raise JobError("both give the price of a machine", "--prices and --machine", "give one of them")
    kinds = tuple(_kind(text, arguments.prices, hazards) for text in arguments.machine)
    names = [kind.name for kind in kinds]
    if len(kinds) > MOST_KINDS or len(set(names)) < len(names):
        raise JobError(
            "a type is there twice, or there are too many", "--machine", f"give up to {MOST_KINDS} types, each once"
        )
    return kinds


def _kind(text: str, table: str, hazards: tuple[float, ...]) -> Kind:
    name, *pairs = [part.strip() for part in text.split(",")]
    if not name or "=" in name:
        raise JobError(f"{text!r} names no type of machine", "--machine", MACHINE_MEND)
    given: dict[str, tuple[float, ...]] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in KEYS or key in given:
            raise JobError(f"{pair!r} is none of {', '.join(KEYS)}, each once", "--machine", MACHINE_MEND)
        given[key] = tuple(_each(value.replace("/", ","), f"--machine {name}, {key}"))
        if key in ("speed", "memory") and (len(given[key]) > 1 or given[key][0] <= 0.0):
            raise JobError(f"{value!r} is not one number above 0", f"--machine {name}, {key}", MACHINE_MEND)
    if "hazard" in given and not hazards:
        raise JobError("the trace has its own lost machines", f"--machine {name}, hazard", "leave out one of them")
    return Kind(
        name=name,
        speed=given.get("speed", (1.0,))[0],
        memory_bytes=round(1e9 * given.get("memory", (0.0,))[0]),
        prices=given.get("price") or (_known_price(name, table),),
        hazards=given.get("hazard", hazards),
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Markets:
    """One a seed. ``zones``: their names, where a way may choose some."""

    drawn: Callable[[float, int, Way], list[Change]]  # of so many seconds and a seed, as the way sees it
    zones: tuple[str, ...]

    def lasting(self, seconds: float) -> Draw:
        """Those of so many seconds."""
        return partial(self.drawn, seconds)


def read_markets(arguments: argparse.Namespace, kinds: Sequence[Kind], machines: int) -> Markets:
    """Markets of so many machines. Raises JobError."""
    if arguments.trace is not None:
        if any(len(kind.prices) > 1 for kind in kinds) or arguments.zones is not None:
            raise JobError("the trace has its own zones", "--trace", "give one price, and no --zones")
        changes = read_trace(arguments.trace)
        prices = {kind.name: kind.prices[0] for kind in kinds} if len(kinds) > 1 else {}
        zones = sorted({change.zone for change in changes})
        return Markets(partial(_from_trace, changes, prices), tuple(zones) if all(zones) else ())
    count = arguments.zones or max(len(each) for kind in kinds for each in (kind.prices, kind.hazards))
    names = tuple(f"zone-{i + 1}" for i in range(count))
    for kind in kinds:
        of = f" of --machine {kind.name}" if kind.name else ""
        for values, name in ((kind.prices, "--prices"), (kind.hazards, "--hazard")):
            if len(values) not in (1, count):
                what = f"there are {len(values)} numbers for {count} zones"
                raise JobError(what, f"{name}{of}", "give one number, or one for each zone")
    by_name = {kind.name: kind for kind in kinds}
    return Markets(partial(_drawn, by_name, names, machines, arguments.bulk, arguments.notice), names)


def _each(text: str, name: str) -> list[float]:
    parts = text.split(",")
    if not all(map(_is_number, parts)):
        raise JobError(f"{text!r} is not a number", name, "write 0.91, or 0.91,0.97: one for each zone")
    values = [float(part) for part in parts]
    for value in values:
        _refuse(value, name)
    return values


def _refuse(value: float, name: str) -> None:
    if not 0.0 <= value < float("inf"):
        raise JobError(f"{value} is too small" if value < 0.0 else f"{value} is not finite", name, "give 0 or more")


def _known_price(kind: str, path: str) -> float:
    rows = load_prices(path).spot_rows(kind)
    if not rows:
        mend = "give a number, or a table that has it, with --prices (culm prices ls shows what is known)"
        raise JobError(f"the spot price of {kind} is not known", "--machine", mend)
    row = min(rows, key=lambda x: x.spot or 0.0)
    where = " ".join(filter(None, (row.provider, row.instance_type, row.region, row.zone)))
    print(f"{where}: {row.spot:g} $/h ({row.source}, {row.date.isoformat()})", file=sys.stderr)
    assert row.spot is not None
    return row.spot


def _from_trace(
    changes: list[Change], prices: Mapping[str, float], seconds: float, seed: int, way: Way
) -> list[Change]:
    found = shifted(changes, random.Random(seed).uniform(0.0, changes[-1].at), seconds)
    return [
        replace(change, price=prices.get(way.kind, change.price))
        for change in found
        if not way.zones or change.zone in way.zones
    ]


def _drawn(
    kinds: Mapping[str, Kind],
    names: Sequence[str],
    machines: int,
    bulk: float,
    notice: float,
    seconds: float,
    seed: int,
    way: Way,
) -> list[Change]:
    kind = kinds[way.kind]
    wanted = way.zones or tuple(names)
    share = -(-machines // len(wanted))  # rounded up: all zones together have at least the machines that are asked for
    zones = [
        Zone(
            name=name,
            machines=share,
            price=kind.prices[i % len(kind.prices)],
            lost_per_hour=kind.hazards[i % len(kind.hazards)],
            bulk_per_hour=bulk,
        )
        for i, name in enumerate(names)
        if name in wanted
    ]
    return in_turn(zoned(seed, zones, seconds, notice))


def in_turn(changes: Sequence[Change]) -> list[Change]:
    """The machines of the beginning, from all zones in turn: whoever takes fewer than there are has some of each."""
    first, seen = [x for x in changes if x.kind == "add" and x.at == 0.0], Counter[str]()

    def number(change: Change) -> int:
        seen[change.zone] += 1
        return seen[change.zone]

    return [*sorted(first, key=number), *(x for x in changes if x.kind != "add" or x.at > 0.0)]

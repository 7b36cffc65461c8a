"""The flags of ``culm plan`` for prices and lost nodes, and the markets that they describe: one a seed."""

import argparse
import random
import sys
from functools import partial

from culm.pipeline.errors import JobError
from culm.pipeline.money.prices import load_prices
from culm.simulator.markets.advice import Draw
from culm.simulator.markets.random_market import Zone, shifted, zoned
from culm.simulator.markets.trace import Change, read_trace
from culm.terminal import flags


def add_market_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prices",
        "--price",
        default="",
        metavar="$/H[,...]|FILE",
        help="the spot price of a machine, or one for each zone; or, with --machine, a price table to search first",
    )
    parser.add_argument(
        "--machine", metavar="TYPE", help="take this machine's price from the price table, such as p3.2xlarge"
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


def read_prices(arguments: argparse.Namespace) -> list[float]:
    """Dollars an hour of a machine: one price, or one for each zone. Raises JobError."""
    text, kind = arguments.prices, arguments.machine
    if kind is None and not text:
        raise JobError(
            "no price of a machine is given", "--prices", "give a number, or a --machine that the table knows"
        )
    if kind is None:
        return _each(text, "--prices")
    if _is_number(text.split(",")[0]):
        raise JobError("both give the price of a machine", "--prices and --machine", "give one of them")
    return [_known_price(kind, text)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_market(arguments: argparse.Namespace, prices: list[float], machines: int, seconds: float) -> Draw:
    """Markets of so many machines for so long. Raises JobError."""
    if arguments.trace is not None:
        if len(prices) > 1 or arguments.zones is not None:
            raise JobError("the trace has its own zones", "--trace", "give one price, and no --zones")
        return partial(_from_trace, read_trace(arguments.trace), seconds)
    hazards = _each(arguments.hazard, "--hazard")
    count = arguments.zones if arguments.zones is not None else max(len(prices), len(hazards))
    for values, name in ((prices, "--prices"), (hazards, "--hazard")):
        if len(values) not in (1, count):
            raise JobError(
                f"there are {len(values)} numbers for {count} zones", name, "give one number, or one for each zone"
            )
    share = -(-machines // count)  # rounded up: all zones together have at least the machines that are asked for
    zones = [
        Zone(
            name=f"zone-{i + 1}",
            machines=share,
            price=prices[i % len(prices)],
            lost_per_hour=hazards[i % len(hazards)],
            bulk_per_hour=arguments.bulk,
        )
        for i in range(count)
    ]
    return partial(_drawn, zones, seconds, arguments.notice)


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
    rows = [x for x in load_prices(path).rows() if x.instance_type.lower() == kind.lower() and x.spot is not None]
    if not rows:
        mend = "give a number, or a table that has it, with --prices (culm prices ls shows what is known)"
        raise JobError(f"the spot price of {kind} is not known", "--machine", mend)
    row = min(rows, key=lambda x: x.spot or 0.0)
    where = " ".join(filter(None, (row.provider, row.instance_type, row.region, row.zone)))
    print(f"{where}: {row.spot:g} $/h ({row.source}, {row.date.isoformat()})", file=sys.stderr)
    assert row.spot is not None
    return row.spot


def _from_trace(changes: list[Change], seconds: float, seed: int) -> list[Change]:
    return shifted(changes, random.Random(seed).uniform(0.0, changes[-1].at), seconds)


def _drawn(zones: list[Zone], seconds: float, notice: float, seed: int) -> list[Change]:
    return zoned(seed, zones, seconds, notice)

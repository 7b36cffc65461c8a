"""``culm cost``: what the run has cost so far, and for what."""

import argparse
import gzip
import json
import math
import time
import zlib
from collections.abc import Iterator

import grpc

from culm.pipeline.counting import of_chunks
from culm.pipeline.errors import JobError
from culm.pipeline.money.codec import Reader, of_lines
from culm.pipeline.money.example_prices import WORDS as EXAMPLE_PRICES
from culm.pipeline.money.example_prices import at_example_prices
from culm.pipeline.money.ledger import Ledger
from culm.pipeline.rpc.channel import details
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb
from culm.terminal import flags
from culm.terminal.client import connect
from culm.ui.outlook_words import change_in_words, changes_of, dollars_in_words, end_in_words, seconds_in_words, whose


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "cost",
        help="what the run has cost, and for what, and what is to come",
        description="Asks the coordinator what the run has cost, when it ends and what that costs, and what one more "
        "or one less node would change. Or computes the cost from an event log. See docs/cost.md.",
        epilog="examples:\n  culm cost --coordinator 127.0.0.1:7070\n  culm cost --log run.jsonl",
    )
    flags.add_coordinator(parser)
    parser.add_argument(
        "--log", default="", metavar="FILE", help="compute it from this log of culm events --json, also gzipped"
    )
    parser.add_argument(
        "--as-of",
        type=flags.number(),
        default=None,
        metavar="TIME",
        help="until when, in unix seconds; default: the log's last event; only with --log",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=cost)


def cost(arguments: argparse.Namespace) -> int:
    figures = _replayed(arguments.log, arguments.as_of) if arguments.log else _asked(arguments.coordinator)
    if arguments.json:
        print(json.dumps(as_json(figures)))
        return 0
    from rich.console import Console

    for line in in_words(figures):
        print(line)
    if figures.nodes:
        Console().print(_table(figures))
    return 0


def _asked(coordinator: str) -> pb.GetCostResponse:
    channel, stub = connect(coordinator)
    with channel:
        try:
            return cleaned(stub.GetCost(pb.GetCostRequest(), timeout=5.0))
        except grpc.RpcError as error:
            mend = "see the coordinator's log"
            raise JobError(f"the coordinator does not answer: {details(error)}", coordinator, mend) from error


def _replayed(path: str, as_of: float | None) -> pb.GetCostResponse:
    """From the log alone; as of its last event if no time is given."""
    ledger, reader, last = Ledger(), Reader("the figures"), 0.0
    for event in of_lines(_lines(path), path):
        if as_of is not None and event.time > as_of:
            break
        reader.read(event, ledger.take)
        last = event.time
    return ledger.figures(as_of if as_of is not None else last)


def _lines(path: str) -> Iterator[str]:
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from file
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:  # EOFError: its compressed end is missing
        cut = "it was cut short, or is damaged" if isinstance(error, EOFError | zlib.error) else "it is not text"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else cut
        mend = "make one: culm events --json > FILE"
        raise JobError(f"the event log cannot be read ({reason})", path, mend) from error


def as_json(figures: pb.GetCostResponse) -> dict[str, object]:
    """All figures under the names of GetCostResponse."""
    from google.protobuf.json_format import MessageToDict

    document: dict[str, object] = MessageToDict(
        figures, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    document["dollars"] = None if math.isnan(figures.dollars) else figures.dollars
    return {**document, "samples": figures.samples, "tokens": figures.tokens, "crossing_bytes": figures.crossing_bytes}


def in_words(figures: pb.GetCostResponse) -> list[str]:
    """The figures, a line each. A figure that is not known is left out."""
    if math.isnan(figures.dollars):
        return ["not known yet: the coordinator waits for Redis to read what the run has cost before"]
    of = of_chunks(figures.chunks)
    hour = f"${figures.dollars_per_hour:.4f} an hour"
    lines = [f"so far          ${figures.dollars:.4f}, now {hour}"]
    if figures.done:  # its nodes may stay for their weights, at a price; others may have gone long ago
        lines = [f"whole run       ${figures.dollars:.4f}, {hour} at its end; what came after is not counted"]
    if at_example_prices(figures.nodes):
        lines.append(f"{EXAMPLE_PRICES}  made up, for trying Culm on one machine: nobody pays them")
    if figures.samples:
        lines.append(f"{of.priced:15} ${of.price(figures.dollars_per_thousand_samples):.5f}")
    if figures.tokens:
        lines.append(f"million tokens  ${figures.dollars_per_million_tokens:.4f}")
    if figures.value:
        lines.append(f"value           {figures.value / of.samples:.3f} {of.trained}/s for $1 an hour")
    if figures.seconds:
        goodput = figures.useful_seconds / figures.seconds
        lines.append(f"goodput         {goodput:.2%} of {figures.seconds:.0f} s")
    uses = {use: dollars for use, dollars in figures.dollars_by_use.items() if dollars > 0}
    if uses:
        ordered = sorted(uses.items(), key=lambda item: -item[1])
        lines.append("spent on        " + ", ".join(f"{use} ${dollars:.4f}" for use, dollars in ordered))
    if figures.crossing_bytes:
        gb = figures.crossing_bytes / 1e9
        lines.append(f"between zones   {gb:.3f} GB, ${figures.transfer_dollars:.4f}")
    if figures.worker_gigabyte_seconds:
        gb_seconds = figures.worker_gigabyte_seconds
        lines.append(f"tensor workers  {gb_seconds:,.0f} GB-seconds, ${figures.worker_dollars:.4f}")
    if figures.interruptions:
        seconds, dollars = (sum(getattr(x, name) for x in figures.interruptions) for name in ("seconds", "dollars"))
        lines.append(f"interruptions   {len(figures.interruptions)}, {seconds:.1f} s lost, ${dollars:.4f}")
    if figures.on_demand_dollars:
        saved = figures.on_demand_dollars - figures.dollars
        lines.append(f"on demand       ${figures.on_demand_dollars:.4f}: ${saved:.4f} saved")
    if figures.checkpoint_dollars:
        saved = figures.checkpoint_dollars - figures.dollars
        lines.append(f"by checkpoints  ${figures.checkpoint_dollars:.4f}: ${saved:.4f} saved")
    lines += forecast_lines(figures)
    if figures.unpriced:
        names = ", ".join(figures.unpriced)
        lines.append(f"without a price {names}: they count as free; give the coordinator a table with --prices")
    return lines


def forecast_lines(figures: pb.GetCostResponse) -> list[str]:
    """What is to come, a line each; of a run that is over there is nothing."""
    foreseen = figures.forecast
    if figures.done or not foreseen.why:
        return []
    if not foreseen.HasField("seconds"):
        return [f"to the end      not known: {foreseen.why}"]
    dollars = dollars_in_words(foreseen)
    lines = [f"to the end      {seconds_in_words(foreseen)}{f', {dollars}' if dollars else ''}: {foreseen.why}"]
    if end := end_in_words(foreseen, figures.as_of, zone=None):
        lines.append(f"ends            {end}")
    for change, more in changes_of(figures):
        label = "one more node" if more else "one node less"
        lines.append(f"{label:<15} {whose(change, more)}: {change_in_words(change)}; {change.why}")
    return lines


def _table(figures: pb.GetCostResponse) -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table("node", "machine", "market", "from", "to", "$/h", "$", box=None, pad_edge=False)
    for node in figures.nodes:
        machine = " ".join(filter(None, (node.machine.provider, node.machine.instance_type, node.machine.zone)))
        ended = time.strftime("%H:%M:%S", time.localtime(node.ended)) if node.ended else "now"
        begun = time.strftime("%H:%M:%S", time.localtime(node.joined))
        price = f"{node.price_per_hour:.4f}"
        row = (node.node, machine, node.machine.market, begun, ended, price, f"{node.dollars:.4f}")
        table.add_row(*map(Text, row))  # as Text, which holds no markup: other processes chose these words
    return table

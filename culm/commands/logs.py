"""``culm logs``: what the processes of a cluster say, wherever it runs."""

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from culm.engines.engine import find
from culm.engines.named_cluster import enter, only_one
from culm.local import clusters
from culm.pipeline.errors import JobError
from culm.pipeline.log_levels import LEVELS
from culm.pipeline.text import closest, plain
from culm.terminal import flags, interrupts
from culm.terminal.client import connect
from culm.terminal.node_lines import NodeLines

POLL_SECONDS = 0.5
Source = Callable[[], Iterator[str | None]]  # of an engine: the lines of a log so far


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "logs",
        help="what the processes of a cluster say",
        description="Prints the logs of a cluster that culm up started: of all its parts, or of one. With --node it "
        "prints the newest lines that a node has told its coordinator, wherever it runs or has run: of a lost node "
        "too, and of a run that was started by hand.",
        epilog="examples:\n  culm logs\n  culm logs gpt --part coordinator --follow\n  culm logs gpt --node n3\n"
        "  culm logs --coordinator 127.0.0.1:7070 --node n3 --level warning",
    )
    parser.add_argument(
        "name",
        nargs="?",
        type=flags.optional(flags.name),
        default="",
        metavar="NAME",
        help="the cluster; default: the only one that is up",
    )
    parser.add_argument("--part", default="", metavar="PART", help="a node's name, coordinator, ...; default: all")
    parser.add_argument("--tail", type=flags.whole(1), metavar="N", help="the last N lines of each; default: all lines")
    parser.add_argument("--follow", action="store_true", help="print new lines as they come, until Ctrl-C")
    parser.add_argument(
        "--node", type=flags.optional(flags.name), default="", metavar="NODE", help="the node whose lines are printed"
    )
    levels = "with --node: lines of this level and those above; default: info"
    parser.add_argument("--level", type=flags.one_of(*LEVELS), default="info", metavar="LEVEL", help=levels)
    where = "with --node: the run's coordinator; default: that of the cluster, else CULM_COORDINATOR"
    parser.add_argument(
        "--coordinator", type=flags.optional(flags.address), default="", metavar="HOST:PORT", help=where
    )
    parser.set_defaults(command=logs)


def logs(arguments: argparse.Namespace) -> int:
    interrupts.interrupt()
    if arguments.node:
        return _of_a_node(arguments)
    if arguments.coordinator:
        raise JobError("a coordinator has the lines of nodes alone", "--coordinator", "name a node with --node")
    name = arguments.name or only_one()
    if not name:
        raise JobError("no cluster is up", "NAME", "name one that was: its logs stay")
    folder = clusters.folder_of(name)
    record = clusters.read(folder)
    if record is None:
        raise JobError("there is no cluster of that name", name, "see culm up")
    engine = find(record.engine)
    seen: dict[str, int] = {}
    try:
        while True:
            sources = _chosen(engine.logs(folder, record), arguments.part)
            for part, lines in sources.items():
                tail = arguments.tail if part not in seen else None
                seen[part] = _print_new(part, lines, seen.get(part, 0), tail, len(sources) > 1)
            if not arguments.follow:
                return 0
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return 0


def _of_a_node(arguments: argparse.Namespace) -> int:
    """Asks the coordinator, which keeps the newest lines of each node."""
    if arguments.part:
        raise JobError("--part and --node name two sources", "--part", "leave one of them out")
    name = "" if arguments.coordinator else arguments.name or only_one()
    coordinator = enter(name) if name else arguments.coordinator or flags.address(flags.default_coordinator())
    channel, stub = connect(coordinator)
    with channel:
        lines = NodeLines(stub, coordinator, arguments.node, arguments.level)
        lines.known()
        tail = arguments.tail
        try:
            while True:
                for line in lines.new(tail):
                    print(line)
                sys.stdout.flush()
                if not arguments.follow:
                    return 0
                tail = None
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            return 0


def _chosen(sources: Mapping[str, Source], part: str) -> Mapping[str, Source]:
    if not part:
        return sources
    if part not in sources:
        raise JobError(f"there is no log of {part!r}", "--part", closest(part, sources))
    return {part: sources[part]}


def _print_new(part: str, lines: Source, seen: int, tail: int | None, named: bool) -> int:
    """Prints the lines after those that were seen, and returns how many there are by now."""
    count = 0
    kept: deque[str] = deque(maxlen=tail)
    for count, line in enumerate(lines(), start=1):
        if count > seen and line is not None:
            kept.append(f"{part}: {plain(line)}" if named else plain(line))
    if not count:
        return seen  # whoever has the log did not answer
    if count < seen:  # another log has begun, as of a container that was started again
        return _print_new(part, lines, 0, None, named)
    for line in kept:
        print(line)
    sys.stdout.flush()
    return count

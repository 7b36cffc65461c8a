"""``culm down``: ends a cluster that ``culm up`` started."""

import argparse

from culm.engines.engine import find
from culm.engines.named_cluster import only_one
from culm.local import clusters
from culm.terminal import flags


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "down",
        help="end a cluster that culm up started",
        description="Ends every process of the cluster, wherever it runs. Its logs stay until a cluster of the same "
        "name comes up.",
        epilog="examples:\n  culm down\n  culm down digits-mlp",
    )
    parser.add_argument(
        "name",
        nargs="?",
        type=flags.optional(flags.name),
        default="",
        metavar="NAME",
        help="the cluster; default: the only one that is up",
    )
    parser.set_defaults(command=down)


def down(arguments: argparse.Namespace) -> int:
    name = arguments.name or only_one()
    if not name:
        print("no cluster is up")
        return 0
    folder = clusters.folder_of(name)
    record = clusters.read(folder)
    ended = find(record.engine).down(folder, record) if record is not None else []
    if ended:
        print(f"{name} is down: {', '.join(ended)} ended; logs: {folder}")
    else:
        others = ", ".join(clusters.running_clusters()) or "none"
        print(f"{name} is not up; clusters that are: {others}")
    return 0

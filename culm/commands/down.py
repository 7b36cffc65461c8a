"""``culm down``: ends a cluster that ``culm up`` started."""

import argparse

from culm.local import clusters
from culm.pipeline.errors import JobError
from culm.terminal import flags


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "down",
        help="end a cluster that culm up started",
        description="Ends every process of the cluster. Its logs stay until a cluster of the same name comes up.",
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
    name = arguments.name or only_one(clusters.running_clusters())
    if not name:
        print("no cluster is up")
        return 0
    folder = clusters.folder_of(name)
    ended = clusters.end(folder)
    if ended:
        print(f"{name} is down: {', '.join(ended)} ended; logs: {folder}")
    else:
        others = ", ".join(clusters.running_clusters()) or "none"
        print(f"{name} is not up; clusters that are: {others}")
    return 0


def only_one(names: list[str]) -> str:
    """The cluster that is meant when no name is given. Raises JobError if several are up."""
    if len(names) > 1:
        raise JobError(f"several clusters are up: {', '.join(names)}", "NAME", "name the one to end")
    return names[0] if names else ""

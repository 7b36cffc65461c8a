"""``culm down``: ends a cluster that ``culm up`` started."""

import argparse
from pathlib import Path

from culm.engines.engine import find
from culm.engines.named_cluster import enter, only_one
from culm.local import clusters
from culm.pipeline.errors import JobError
from culm.terminal import flags
from culm.terminal.asides import aside


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "down",
        help="end a cluster that culm up started",
        description="Has the run save a checkpoint, or says what is lost where its job has none, and ends every "
        "process of the cluster, wherever it runs. Its logs and its events "
        "stay until a cluster of the same name comes up.",
        epilog="examples:\n  culm down\n  culm down digits-mlp --now",
    )
    parser.add_argument(
        "name",
        nargs="?",
        type=flags.optional(flags.name),
        default="",
        metavar="NAME",
        help="the cluster; default: the only one that is up",
    )
    parser.add_argument("--now", action="store_true", help="save nothing first, and keep no events")
    parser.set_defaults(command=down)


def down(arguments: argparse.Namespace) -> int:
    name = arguments.name or only_one() or _only_lapsed()
    if not name:
        print("no cluster is up")
        return 0
    folder = clusters.folder_of(name)
    record = clusters.read(folder)
    left = "logs"
    if record is not None and record.is_up and record.address and not arguments.now:
        left = _part(name, folder)
    lapsed = record.lapsed if record is not None else ""
    ended = find(record.engine).down(folder, record) if record is not None else []
    if ended:
        print(f"{name} is down: {', '.join(ended)} ended; {left}: {folder}")
    elif lapsed:
        print(f"{name} had ended already: {lapsed}; logs: {folder}")
    else:
        others = ", ".join(clusters.running_clusters())
        print(f"{name} is not up; clusters that are: {others or 'none'}")
        return 2 if others and record is None else 0  # a name that was misspelt
    return 0


def _only_lapsed() -> str:
    """The cluster that has ended by itself, if there is one such."""
    names = list(clusters.lapsed_clusters())
    return names[0] if len(names) == 1 else ""


def _part(name: str, folder: Path) -> str:
    """Says what is saved of the run and what is lost. Returns what its folder holds then.

    A cluster that cannot be reached is ended all the same.
    """
    from culm.local.event_file import keep
    from culm.local.parting import part

    try:
        coordinator = enter(name)
    except JobError as error:
        print(f"nothing can be saved: {error.what}")
        return "logs"
    print(part(coordinator, tell=aside).text)
    if problem := keep(coordinator, folder):
        aside(f"its events are not kept: {problem}")
        return "logs"
    return "logs and events"

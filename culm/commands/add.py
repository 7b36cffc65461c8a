"""``culm add``: starts nodes of a local cluster again that have gone for good, and further ones."""

import argparse
import json
import time

from culm.engines.engine import ADD, find
from culm.engines.named_cluster import only_one
from culm.local import clusters
from culm.local.clusters import LOCAL
from culm.pipeline import private
from culm.pipeline.errors import JobError
from culm.terminal import flags

SECONDS = 60.0  # for the keeper, which may be starting a coordinator again
POLL_SECONDS = 0.1


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "add",
        help="start nodes of a local cluster again, or further ones",
        description="Starts the nodes and tensor workers of a local cluster that are not started again by themselves: "
        "those that were drained, and those that ended by themselves several times in a row. A node that is killed "
        "comes back without it.",
        epilog="examples:\n  culm add\n  culm add gpt --spares 2",
    )
    parser.add_argument(
        "name",
        nargs="?",
        type=flags.optional(flags.name),
        default="",
        metavar="NAME",
        help="the cluster; default: the only one that is up",
    )
    parser.add_argument(
        "--spares", type=flags.nodes, default=0, metavar="K", help="nodes to start beside them; default: 0"
    )
    parser.set_defaults(command=add)


def add(arguments: argparse.Namespace) -> int:
    name = arguments.name or only_one()
    folder = clusters.folder_of(name) if name else None
    record = clusters.read(folder) if folder is not None else None
    if folder is None or record is None or not record.is_up:
        why = record.lapsed if record is not None else ""
        up = ", ".join(clusters.running_clusters())
        mend = f"name one that is up: {up}" if up else "start one with culm up"
        raise JobError(why or "no such cluster is up", name or "NAME", mend)
    if record.engine != LOCAL:
        raise JobError(f"the cluster runs on {record.engine}, which keeps its nodes", name, find(record.engine).more)
    wanted = [*record.gone, *(f"{arguments.spares} more" for _ in range(min(arguments.spares, 1)))]
    if not wanted:
        print("every node runs, or is being started again; --spares K starts further ones")
        return 0
    private.write_text(folder / ADD, json.dumps({"further": arguments.spares}))
    deadline = time.monotonic() + SECONDS
    while (folder / ADD).exists():
        if time.monotonic() > deadline:
            (folder / ADD).unlink(missing_ok=True)
            raise JobError(f"its keeper has not answered in {SECONDS:g} s", name, f"see {folder / 'keeper.log'}")
        time.sleep(POLL_SECONDS)
    print(f"{name} starts {', '.join(wanted)}")
    return 0

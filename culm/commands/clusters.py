"""``culm clusters``: what ``culm up`` has started, and what each engine says of its parts."""

import argparse
import json

from culm.engines.engine import find
from culm.local import clusters as records
from culm.local.clusters import LOCAL, Record
from culm.pipeline.errors import JobError


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "clusters",
        help="what culm up has started",
        description="Lists the clusters that are up: the engine, the coordinator, and the state of every part in the "
        "engine's own words.",
        epilog="example: culm clusters",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=clusters)


def clusters(arguments: argparse.Namespace) -> int:
    lapsed = records.lapsed_clusters()
    found = {name: records.read(records.folder_of(name)) for name in records.running_clusters()}
    told = {name: _told(record) for name, record in found.items() if record is not None}
    if arguments.json:
        ended = {name: {"engine": LOCAL, "coordinator": "", "ended": why, "parts": {}} for name, why in lapsed.items()}
        print(json.dumps({**told, **ended}))
        return 0
    if not told and not lapsed:
        print("no cluster is up")
    for name, cluster in told.items():
        print(f"{name} on {cluster['engine']}, coordinator {cluster['coordinator'] or 'not there yet'}")
        parts = cluster["parts"]
        assert isinstance(parts, dict)
        for part, state in parts.items():
            print(f"  {part:<20} {state}")
    for name, why in lapsed.items():
        print(f"{name} on {LOCAL} has ended: {why}; culm down {name} forgets it, culm up starts it anew")
    return 0


def _told(record: Record) -> dict[str, object]:
    """An engine that does not answer is told in place of its parts."""
    try:
        parts = dict(find(record.engine).parts(records.folder_of(record.name), record))
    except JobError as error:
        parts = {record.engine: str(error)}
    return {"engine": record.engine, "coordinator": record.address, "parts": parts}

"""The event log as text: a JSON object a line, as ``culm events --json`` prints it."""

import json
from collections.abc import Iterable, Iterator

from pipeline.errors import JobError
from protos import coordinator_pb2 as pb

FIXED = ("sequence", "time", "kind", "text", "step", "generation")


def event_to_line(event: pb.ListEventsResponse) -> str:
    """One line, without its end. Facts stand beside the fixed names; one of the same name takes its place."""
    fixed = {name: getattr(event, name) for name in FIXED}
    return json.dumps({**fixed, **dict(sorted(event.fields.items()))})


def events_of_lines(lines: Iterable[str], where: str) -> Iterator[pb.ListEventsResponse]:
    """The events of a log. Raises JobError naming the line for what is none."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            fields = {name: str(value) for name, value in said.items() if name not in FIXED or isinstance(value, str)}
            event = pb.ListEventsResponse(
                sequence=int(said["sequence"]),
                time=float(said["time"]),
                kind=said["kind"],
                text=said["text"],
                step=int(said["step"]),
                generation=int(said["generation"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JobError("this is no event", f"{where}, line {number}", "write it with culm events --json") from error
        for name in ("kind", "text"):
            fields.pop(name)
        event.fields.update(fields)
        yield event

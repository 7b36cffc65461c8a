"""The event log as text: a JSON object a line, as ``culm events --json`` prints it."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator

from culm.pipeline.errors import JobError
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.events")

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
        yield cleaned(event)


class Reader:
    """Hands events to what derives figures from them. One that cannot be read (it lacks a field, or is of another
    version) is set aside and told, once a kind: figures may be off then, and nothing else is.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._told: set[str] = set()

    def read(self, event: pb.ListEventsResponse, take: Callable[[pb.ListEventsResponse], None]) -> bool:
        """Whether it could be read."""
        try:
            take(event)
        except Exception as error:
            self.set_aside(f"an event of the kind {event.kind!r}", error)
            return False
        return True

    def set_aside(self, which: str, error: Exception) -> None:
        if which not in self._told and len(self._told) < 100:
            self._told.add(which)
            why = f"{type(error).__name__}: {error}"
            log.warning("%s cannot be read and is set aside, %s may be off: %s", which, self._what, why)

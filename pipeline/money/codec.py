"""Events as fields of text, and these as messages on the wire, lines of JSON, and entries of a store."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, get_type_hints

from culm.pipeline.errors import JobError
from culm.pipeline.money.kinds import KINDS, Committed, Event
from culm.pipeline.plan import Stages, stages_from_lists, stages_to_lists
from culm.pipeline.plan_bounds import LATEST
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb

# An event is one frozen class of ``kinds``. Its fields as text are the one form that all others carry:
#
#     Event  <--fields-->  Entry  <--message-->  ListEventsResponse  <--->  a line of JSON, an entry of a store
#
# A log outlives the version that wrote it, and a newer version may have written it. So a reader goes by what it finds:
#
#     a kind that it does not know         Unknown: kept in the log, and counted nowhere
#     a field that it does not know        ignored
#     a field that is missing              its default, which is what an older log means; without one, Unreadable
#     a value of another type              Unreadable
#
# What is Unreadable is set aside, one event at a time: figures may be off then, and nothing else is. Floats are written
# to their last bit, since figures derived from the log are compared bit by bit.

log = logging.getLogger("culm.events")

FIXED = ("sequence", "time", "kind", "text", "step", "generation")  # what every event has
# Fields with a number for each of several names: what the name of such a number begins with, and its type.
MAPPINGS: Mapping[str, tuple[str, type[int] | type[float]]] = {"sent": ("sent.", int), "metrics": ("metric.", float)}


class Unreadable(Exception):
    """An event that lacks a field, or has a value that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Event):
    """An event of a kind that this version does not know."""

    kind = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event in the log."""

    sequence: int
    time: float  # unix seconds
    kind: str  # the event's; of one that this version does not know, too
    text: str
    step: int  # steps committed by then
    generation: int  # of the plan by then
    event: Event


# ---- fields ----------------------------------------------------------------------------------------------------------
_FIELDS: dict[str, tuple[Field[Any], ...]] = {kind: fields(known) for kind, known in KINDS.items()}
_TYPES: dict[str, dict[str, Any]] = {kind: get_type_hints(known) for kind, known in KINDS.items()}


def to_fields(event: Event) -> dict[str, str]:
    """The fields as text. One without a value (None) is left out."""
    found: dict[str, str] = {}
    for each in _FIELDS.get(event.kind, ()):
        value = getattr(event, each.name)
        if each.name in MAPPINGS:
            prefix, _ = MAPPINGS[each.name]
            found |= {f"{prefix}{name}": repr(number) for name, number in value.items()}
        elif each.name == "stages" and isinstance(value, tuple):
            found["stages"] = json.dumps(stages_to_lists(value))
        elif value is not None:
            found[each.name] = repr(value) if isinstance(value, float) else str(value)
    if isinstance(event, Committed):
        found["loss_hex"] = event.loss.hex()
    return found


def of_fields(kind: str, said: Mapping[str, str]) -> Event:
    """Reads what ``to_fields`` wrote, in this version or another. Raises Unreadable."""
    known = KINDS.get(kind)
    if known is None:
        return Unknown()
    try:
        values = {each.name: _value(each, _TYPES[kind][each.name], said) for each in _FIELDS[kind]}
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    return known(**values)


def _value(each: Field[Any], hint: Any, said: Mapping[str, str]) -> Any:
    if each.name in MAPPINGS:
        prefix, kind = MAPPINGS[each.name]
        return {name.removeprefix(prefix): kind(text) for name, text in said.items() if name.startswith(prefix)}
    text = said.get(each.name)
    if text is None:
        if each.default is MISSING:
            raise KeyError(each.name)
        return each.default
    if hint is str:
        return text
    if hint in (float, float | None):
        return float(text)
    if hint == Stages:
        return stages_from_lists(json.loads(text))
    return int(text)


# ---- the message on the wire -----------------------------------------------------------------------------------------
def to_message(entry: Entry) -> pb.ListEventsResponse:
    return pb.ListEventsResponse(
        sequence=entry.sequence,
        time=entry.time,
        kind=entry.kind,
        text=entry.text,
        step=entry.step,
        generation=entry.generation,
        fields=to_fields(entry.event),
    )


def of_message(message: pb.ListEventsResponse) -> Entry:
    """Raises Unreadable."""
    return Entry(
        sequence=message.sequence,
        time=message.time,
        kind=message.kind,
        text=message.text,
        step=message.step,
        generation=message.generation,
        event=of_fields(message.kind, message.fields),
    )


# ---- lines of JSON, as ``culm events --json`` prints them ------------------------------------------------------------
def to_line(message: pb.ListEventsResponse) -> str:
    """One line, without its end. A field takes the place of a fixed name that is called alike: the step of a commit."""
    fixed = {name: getattr(message, name) for name in FIXED}
    return json.dumps({**fixed, **dict(sorted(message.fields.items()))})


def of_lines(lines: Iterable[str], where: str) -> Iterator[pb.ListEventsResponse]:
    """The events of a log. Raises JobError, naming the line, for a line that is no event."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            facts = {name: str(value) for name, value in said.items() if name not in FIXED or isinstance(value, str)}
            message = pb.ListEventsResponse(
                sequence=int(said["sequence"]),
                time=_moment(said["time"]),
                kind=said["kind"],
                text=said["text"],
                step=int(said["step"]),
                generation=int(said["generation"]),
            )
            for name in ("kind", "text"):
                facts.pop(name)
            message.fields.update(facts)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise JobError("this is no event", f"{where}, line {number}", "write it with culm events --json") from error
        yield cleaned(message)


def _moment(told: Any) -> float:
    """Unix seconds. Raises ValueError for a time that cannot be: figures would be no numbers, and no clock shows it."""
    at = float(told)
    if not 0.0 <= at <= LATEST:
        raise ValueError(f"{at} is no time")
    return at


# ---- entries of a store's stream -------------------------------------------------------------------------------------
def to_stored(message: pb.ListEventsResponse) -> dict[str, Any]:
    fixed = {name: getattr(message, name) for name in FIXED}
    return {**fixed, **{f"fields.{name}": value for name, value in message.fields.items()}}


def of_stored(entry: Mapping[str, str]) -> pb.ListEventsResponse:
    """Raises KeyError or ValueError for an entry that is no event."""
    return pb.ListEventsResponse(
        sequence=int(entry["sequence"]),
        time=_moment(entry["time"]),
        kind=entry["kind"],
        text=entry["text"],
        step=int(entry["step"]),
        generation=int(entry["generation"]),
        fields={k.removeprefix("fields."): v for k, v in entry.items() if k.startswith("fields.")},
    )


# ---- readers ---------------------------------------------------------------------------------------------------------
class Reader:
    """Hands events to what derives figures from them. One that cannot be read is set aside, and logged once a kind."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told: set[str] = set()

    def read(self, message: pb.ListEventsResponse, take: Callable[[Entry], None]) -> bool:
        """Whether the event could be read. Whatever its reader raises sets it aside too."""
        try:
            take(of_message(message))
        except Exception as error:
            self.set_aside(f"an event of the kind {message.kind!r}", error)
            return False
        return True

    def set_aside(self, which: str, error: Exception) -> None:
        if which not in self._told and len(self._told) < 100:  # kinds come from outside: memory stays bounded
            self._told.add(which)
            why = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
            log.warning("could not read %s and left it out; %s may be off: %s", which, self._what, why)

"""What happens to machines: a trace, read from a file in any of three formats. ``random_market`` draws one.

- ``time_ms,add|remove,node``: a line an event, as Bamboo's and Oobleck's artifacts have them.
- ``date, time, count``: how many machines there are, line by line. Which of them go is not on record: it is drawn.
- JSON lines, Culm's own: ``{"at": seconds, "kind": "add" | "remove" | "notice", "node": name}`` with ``"zone"`` and
  ``"price"`` (dollars an hour) where they are known; ``"notice"`` may say ``"seconds_left"``.
"""

import json
import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from culm.coordinator.settling import BULK_SECONDS, HOUR
from culm.coordinator.state import BulksBefore
from culm.pipeline.errors import JobError

Kind = Literal["add", "notice", "remove"]
FORMATS = "time_ms,add|remove,node; date, time, count; or JSON lines"
MILLISECONDS = re.compile(r"\d{1,15}", re.ASCII)
MOST_MACHINES = 1_000_000  # at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One machine comes, is told that it will have to go, or is gone."""

    at: float  # seconds since the beginning
    kind: Kind
    node: str
    zone: str = ""
    price: float | None = None  # dollars an hour, where the trace knows it
    seconds_left: float | None = None  # of a notice: until the machine goes


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    at: float = Field(ge=0, allow_inf_nan=False)
    kind: Kind
    node: str = Field(min_length=1)
    zone: str = ""
    price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    seconds_left: float | None = Field(default=None, ge=0, allow_inf_nan=False)


def read_trace(path: str | Path, seed: int = 0) -> list[Change]:
    """The trace in order of time; ``seed`` is for what is not on record. Raises JobError, naming the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise JobError(f"the trace cannot be read ({reason})", str(path), "give the path of a trace") from error
    numbered = [(n, line.strip()) for n, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    if not numbered:
        raise JobError("the trace is empty", str(path), f"give one of: {FORMATS}")
    first = numbered[0][1]
    read: Callable[[Sequence[tuple[int, str]], str], list[Change]]
    if first.startswith("{"):
        read = _json_lines
    elif first.count(",") == 2 and first.split(",")[1].strip() in ("add", "remove"):
        read = _events
    else:
        read = partial(_counts, draw=random.Random(seed))
    changes = sorted(read(numbered, str(path)), key=lambda change: change.at)
    _check(changes, str(path))
    return changes


def at_most(changes: Iterable[Change], machines: int) -> list[Change]:
    """What is left for one who rents no more than so many: another one is taken when one of them goes."""
    rented: dict[str, Change] = {}
    offered: dict[str, Change] = {}
    found = []
    for change in changes:
        if change.kind == "add":
            offered[change.node] = change
        elif change.node in rented:
            found.append(change)
            if change.kind == "remove":
                del rented[change.node]
        elif change.kind == "remove":
            del offered[change.node]
        while offered and len(rented) < machines:
            taken = offered.pop(next(iter(offered)))
            rented[taken.node] = taken
            found.append(replace(taken, at=change.at))
    return found


def hastened(changes: Sequence[Change], speed: float, burst: float = 0.0) -> list[Change]:
    """The trace, played ``speed`` times as fast, in which bursts keep their seconds.

    Changes up to ``burst`` seconds apart stay as far apart: what is lost at once is what tries a run. Of a longer pause
    those seconds stay, and the rest passes ``speed`` times as fast.
    """
    played, found, before = 0.0, [], 0.0
    for change in changes:
        pause = change.at - before
        played += min(pause, burst) + max(0.0, pause - burst) / speed
        found.append(replace(change, at=played))
        before = change.at
    return found


def bulks_before(changes: Iterable[Change]) -> BulksBefore:
    """What a trace tells a run that comes after it: of the machines that were there, the share that each bulk took."""
    here, hours, last = 0, 0.0, -math.inf
    sizes: list[int] = []
    there: list[int] = []  # before each bulk
    for change in changes:
        if change.kind == "remove":
            if change.at - last > BULK_SECONDS:
                sizes.append(0)
                there.append(here)
            sizes[-1] += 1
            last = change.at
        here += {"add": 1, "remove": -1, "notice": 0}[change.kind]
        hours = change.at / HOUR
    return BulksBefore(tuple(size / of for size, of in zip(sizes, there, strict=True)), hours)


def write_trace(changes: Iterable[Change]) -> str:
    """As JSON lines, which ``read_trace`` reads back."""
    return "".join(
        json.dumps({key: value for key, value in asdict(change).items() if value not in (None, "")}) + "\n"
        for change in changes
    )


def _bad(what: str, path: str, number: int, mend: str) -> JobError:
    return JobError(what, f"{path}, line {number}", mend)


def _events(lines: Sequence[tuple[int, str]], path: str) -> list[Change]:
    changes = []
    for number, line in lines:
        fields = [field.strip() for field in line.split(",")]
        if (
            len(fields) != 3
            or fields[1] not in ("add", "remove")
            or not MILLISECONDS.fullmatch(fields[0])
            or not fields[2]
        ):
            raise _bad(f"{line!r} is no event", path, number, "write time_ms,add|remove,node")
        kind: Kind = "add" if fields[1] == "add" else "remove"
        changes.append(Change(at=int(fields[0]) / 1e3, kind=kind, node=fields[2]))
    return changes


def _counts(lines: Sequence[tuple[int, str]], path: str, draw: random.Random) -> list[Change]:
    changes: list[Change] = []
    here: list[str] = []
    names = (f"node{number}" for number in count(1))
    begin: datetime | None = None
    at = 0.0
    for number, line in lines:
        fields = [field.strip() for field in line.split(",")]
        try:
            day, time, live = fields
            moment, wanted = datetime.fromisoformat(f"{day} {time}"), int(live)
            begin = begin or moment
            since = (moment - begin).total_seconds()
        except (ValueError, TypeError) as error:  # TypeError: one of two times names a time zone
            mend = f"a trace is one of: {FORMATS}"
            raise _bad(f"{line!r} is neither an event nor a count", path, number, mend) from error
        if not 0 <= wanted <= MOST_MACHINES:
            raise _bad(f"{wanted} machines cannot be", path, number, f"count from 0, up to {MOST_MACHINES}")
        at = max(at, since)  # where two recordings overlap the clock seems to go back
        while len(here) > wanted:
            changes.append(Change(at=at, kind="remove", node=here.pop(draw.randrange(len(here)))))
        while len(here) < wanted:
            here.append(next(names))
            changes.append(Change(at=at, kind="add", node=here[-1]))
    return changes


def _json_lines(lines: Sequence[tuple[int, str]], path: str) -> list[Change]:
    changes = []
    for number, line in lines:
        try:
            found = _Line.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            said = first["msg"][0].lower() + first["msg"][1:]
            mend = 'write {"at": SECONDS, "kind": "add", "node": NAME}'
            raise _bad(f"{where}: {said}" if where else said, path, number, mend) from error
        changes.append(Change(**found.model_dump()))
    return changes


def _check(changes: Sequence[Change], path: str) -> None:
    """A machine comes before it goes, and once at a time."""
    here: set[str] = set()
    for change in changes:
        if (change.kind == "add") == (change.node in here):
            what = f"{change.node} is added twice" if change.kind == "add" else f"{change.node} goes before it comes"
            raise JobError(f"{what}, at {change.at:g} s", path, "a machine is added, then removed")
        if change.kind == "add":
            here.add(change.node)
        elif change.kind == "remove":
            here.discard(change.node)

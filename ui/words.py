"""How the pages write numbers, times, and other processes' words."""

import math
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo


def money(dollars: float) -> str:
    """Two decimals from a dollar on, else as many as show three digits; six at most. A dash where nobody knows."""
    if math.isnan(dollars):
        return "–"
    sign, amount = "-" if dollars < 0 else "", abs(dollars)
    if amount == 0 or amount >= 1:
        return f"{sign}${amount:,.2f}"
    return f"{sign}${amount:.{min(6, 2 - math.floor(math.log10(amount)))}f}"


def worth(dollars: float, known: bool) -> str:
    """Money that is known only where a price is."""
    return money(dollars) if known else "–"


def literal(text: str) -> str:
    """Another process' words, escaped for Markdown: they make no link, picture, colour or formula."""
    return re.sub(r"www\.", r"www\.", re.sub(r"([\\`*_\[\]<>#|~$:&])", r"\\\1", text))


def span(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1e3:.1f} s"


def after(ms: float) -> str:
    """A distance in time within an incident: fine where it is short."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1e3:.1f} s" if ms < 60_000 else span(ms / 1e3)


def zone_of(name: str | None, offset_minutes: int | None) -> tzinfo:
    """Where somebody looks from, as a browser tells it: the zone's name, and the minutes from there to UTC."""
    try:
        return ZoneInfo(name) if name else UTC
    except (KeyError, ValueError, OSError):  # no such zone here: its offset of today has to do
        return timezone(timedelta(minutes=-(offset_minutes or 0)))


def zone_in_words(zone: tzinfo, at: float) -> str:
    """Such as ``Europe/Berlin, UTC+01:00``."""
    then = datetime.fromtimestamp(at, zone)
    name, offset = str(zone), f"UTC{then:%z}"[:6] + ":" + f"{then:%z}"[3:5]
    return "UTC" if offset == "UTC+00:00" else offset if name.startswith("UTC") else f"{name}, {offset}"


def clock(at: float, zone: tzinfo = UTC) -> str:
    """Time of day there."""
    return f"{datetime.fromtimestamp(at, zone):%H:%M:%S}"


def moment(at: float, zone: tzinfo = UTC) -> str:
    """Day and time there."""
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def fewer(words: str, most: int) -> str:
    """Of a list with semicolons so many of its parts, and how many more there are."""
    parts = words.split("; ")
    more = len(parts) - most
    return words if more <= 0 else f"{'; '.join(parts[:most])}; and {more} more"


def seconds_left(step: int, steps: int, samples_per_second: float, samples_per_step: int) -> float | None:
    """Seconds to the last step at the present speed; None while the speed is not known."""
    if not samples_per_second or not samples_per_step:
        return None
    return (steps - step) * samples_per_step / samples_per_second

"""How the pages write numbers, times, and other processes' words."""

import math
import re
import time


def money(dollars: float) -> str:
    """Two decimals from a dollar on, else as many as show three digits; six at most."""
    sign, amount = "-" if dollars < 0 else "", abs(dollars)
    if amount == 0 or amount >= 1:
        return f"{sign}${amount:,.2f}"
    return f"{sign}${amount:.{min(6, 2 - math.floor(math.log10(amount)))}f}"


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


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def clock(at: float) -> str:
    """Time of day, here."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def seconds_left(step: int, steps: int, samples_per_second: float, samples_per_step: int) -> float | None:
    """Seconds to the last step at the present speed; None while the speed is not known."""
    if not samples_per_second or not samples_per_step:
        return None
    return (steps - step) * samples_per_step / samples_per_second

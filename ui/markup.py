"""What the pages write as HTML: figures, tables, time lines. Pure; every text of another process is escaped here.

HTML, since a phone and a wide screen need another order of the same figures, and one element costs less than ten.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from culm.ui.look import Firing
from culm.ui.palette import MEANINGS
from culm.ui.words import after, span

ACROSS = 8  # figures in one row; more stand in two
Figure = tuple[str, str, str]  # what, how much, a note


def tone_of(meaning: str) -> str:
    return meaning if meaning in MEANINGS else "resting"


def pill(words: str, tone: str) -> str:
    return f'<span class="culm-pill culm-{tone_of(tone)}">{escape(words)}</span>'


def head(word: str, tone: str, name: str, told: str, share: float | None) -> str:
    """The run in one line, and how far it is."""
    bar = ""
    if share is not None:
        percent = 100 * max(0.0, min(1.0, share))
        bar = (
            f'<div class="culm-bar" role="progressbar" aria-label="steps committed" aria-valuemin="0" '
            f'aria-valuemax="100" aria-valuenow="{percent:.0f}">'
            f'<div class="culm-{tone_of(tone)}" style="width:{percent:.2f}%"></div></div>'
        )
    return (
        f'<div class="culm-head">{pill(word, tone)}<strong>{escape(name)}</strong>'
        f"<span>{escape(told)}</span></div>{bar}"
    )


def alerts(told: Iterable[tuple[str, str]]) -> str:
    """Lines that everybody has to know: (tone, words)."""
    lines = "".join(f'<p class="culm-alert culm-{tone_of(tone)}">{escape(words)}</p>' for tone, words in told)
    return f'<div role="status">{lines}</div>' if lines else ""


def firing(each: Iterable[Firing], now: float) -> str:
    """Alerts that fire: what each is called and how much it matters, what is wrong, and since when."""
    lines = ""
    for alert in each:
        tone = "bad" if alert.severity == "page" else "leaving"
        words = re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(alert.summary))
        lines += (
            f'<li class="culm-alert culm-{tone}">{pill(alert.severity, tone)}<strong>{escape(alert.name)}</strong>'
            f"<span>{words}</span><span>for {escape(span(max(0.0, now - alert.since)))}</span></li>"
        )
    return f'<ul class="culm-firing" aria-label="alerts that fire">{lines}</ul>' if lines else ""


class LogRow(NamedTuple):
    clock: str
    node: str
    level: str
    tone: str
    said: str


def log(rows: Iterable[LogRow], caption: str) -> str:
    """Log lines in a box of their own, which scrolls."""
    lines = ""
    for row in rows:
        lines += (
            f'<li class="culm-{tone_of(row.tone)}"><span>{escape(row.clock)}</span><span>{escape(row.node)}</span>'
            f"<span>{escape(row.level)}</span><span>{escape(row.said)}</span></li>"
        )
    return f'<div class="culm-log" tabindex="0" role="region" aria-label="{escape(caption)}"><ol>{lines}</ol></div>'


def figures(each: Sequence[Figure]) -> str:
    """Figures beside each other, as many as there is room for."""
    cells = ""
    for what, much, more in each:
        under = f"<span>{escape(more)}</span>" if more else ""
        cells += f"<div><dt>{escape(what)}</dt><dd><b>{escape(much)}</b>{under}</dd></div>"
    across = len(each) if len(each) <= ACROSS else -(-len(each) // 2)
    return f'<dl class="culm-figures" style="--across:{across}">{cells}</dl>'


def facts(each: Sequence[tuple[str, str]], title: str = "") -> str:
    """Names and what they are, one a line."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in each)
    return f'{f"<h3>{escape(title)}</h3>" if title else ""}<dl class="culm-facts">{rows}</dl>'


def title(words: str, kind: str, tone: str, told: str) -> str:
    """What a page is about: a heading, its kind, and a line below."""
    return f'<div class="culm-title"><h2>{escape(words)}</h2>{pill(kind, tone)}</div>{note(told)}'


def chart_title(what: str, newest: str) -> str:
    return f'<h3 class="culm-chart">{escape(what)} <span>{escape(newest)}</span></h3>'


def note(words: str) -> str:
    return f'<p class="culm-note">{escape(words)}</p>'


def table(rows: Sequence[dict[str, str]], caption: str, numbers: Sequence[str] = ()) -> str:
    """A small table. The first column names its row; those in ``numbers`` stand to the right."""
    if not rows:
        return ""
    names = list(rows[0])
    right = {name: ' class="culm-number"' if name in numbers else "" for name in names}
    top = "".join(f'<th scope="col"{right[name]}>{escape(name)}</th>' for name in names)
    body = ""
    for row in rows:
        first, *others = (escape(row[name]) for name in names)
        cells = "".join(f"<td{right[name]}>{cell}</td>" for name, cell in zip(names[1:], others, strict=True))
        body += f'<tr><th scope="row"{right[names[0]]}>{first}</th>{cells}</tr>'
    return (
        f'<div class="culm-scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="culm-table">'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def told_events(each: Sequence[tuple[str, str, str]]) -> str:
    """Events as a list, each with when it was, its kind, and its words."""
    lines = "".join(
        f"<li><span>{escape(when)}</span> <b>{escape(kind)}</b><p>{escape(words)}</p></li>"
        for when, kind, words in each
    )
    return f'<ol class="culm-events" aria-label="events, the newest first">{lines}</ol>'


def time_line(moments: Sequence[tuple[str, float]], origin: str, tone: str, clocks: Sequence[str]) -> str:
    """An incident from its origin on: a bar from each moment to the next, all on one scale.

    ``moments``: what, and milliseconds since the origin. ``clocks``: the time of day of each.
    """
    if not moments:
        return ""
    ordered = sorted(zip(moments, clocks, strict=True), key=lambda pair: pair[0][1])
    whole = max(ordered[-1][0][1], 1e-9)
    rows, before = f'<li><span>{escape(origin)}</span><span class="culm-lane"></span><span>0</span></li>', 0.0
    for (what, ms), at in ordered:
        left, width = 100 * before / whole, 100 * (ms - before) / whole
        bar = f'<i style="left:{min(left, 99.2):.2f}%;width:{max(width, 0.8):.2f}%"></i>'
        rows += (
            f'<li><span>{escape(what)}</span><span class="culm-lane culm-{tone_of(tone)}">{bar}</span>'
            f'<span title="{escape(at)}">+{escape(after(ms))}</span></li>'
        )
        before = ms
    return f'<ol class="culm-line" aria-label="time line">{rows}</ol>'

"""A step's timetable as a Vega-Lite chart: nodes down, time across. Pure."""

from collections.abc import Iterator
from typing import Any

from culm.pipeline.critical_path import Leg
from culm.pipeline.ideal_step import IdealStep
from culm.pipeline.timetable import MEANING, USES, Lane, Timetable
from culm.ui.charts import Spec, config, name, number
from culm.ui.palette import PAGE, RESTING, WORK

# Work has colours, waiting has none: light grey until a tensor is there, darker until the commit is.
WAITING = {"bubble": "rgba(128,134,143,0.25)", "commit": "rgba(128,134,143,0.55)", "idle": "rgba(128,134,143,0.10)"}
IDEAL_USE = {"F": "forward", "E": "forward", "B": "backward", "W": "weights"}
MOST = 12_000  # bars: of a larger step the longest are shown
NAMED = 14  # rows up to which bars have names
LEAST_NAMED = 1 / 500  # of the step's time that a bar takes which has a name: zooming in shows it
LETTER = 6.5  # pixels: a name is shown where its bar is wide enough for it
SHORT = "split(datum.label, ' (')[0]"  # of a meaning: the page and the tooltip have the rest
ACROSS = 3  # columns of the legend: a phone has room for so many
TIME = "milliseconds since the step began"
SEPARATOR = " "  # the row between the nodes and their ideal


def title(lane: Lane) -> str:
    """A node with its stages."""
    return f"{lane.node} · {', '.join(map(str, lane.stages))}" if lane.stages else lane.node


def _colour(use: str, scheme: str) -> str:
    return WAITING[use] if use in WAITING else WORK[use].on(scheme)


def in_words(timetable: Timetable, ideal: IdealStep | None) -> str:
    """What the chart shows, for whoever does not see it."""
    rows = f"{len(timetable.lanes)} nodes, a row each: what their compute threads did in step {timetable.step}"
    best = f"; the ideal takes {ideal.seconds * 1e3:.1f} ms" if ideal is not None else ""
    return f"{rows}, which took {timetable.seconds * 1e3:.1f} ms{best}."


def gantt(timetable: Timetable, ideal: IdealStep | None, scheme: str = "light") -> Spec:
    """The step as it was, and below it its ideal in the same scale. The wheel zooms, dragging moves, twice resets."""
    bars = [*_measured(timetable), *(_best(timetable, ideal) if ideal is not None else ())]
    bars = sorted(bars, key=lambda bar: bar["end"] - bar["begin"], reverse=True)[:MOST]
    rows = [title(lane) for lane in timetable.lanes]
    if ideal is not None:
        rows += [SEPARATOR, *(f"ideal {lane.node}" for lane in timetable.lanes)]
    uses = [use for use in USES if use in {bar["use"] for bar in bars}]
    colour = {"domain": [MEANING[use] for use in uses], "range": [_colour(use, scheme) for use in uses]}
    for bar in bars:
        bar["use"] = MEANING[bar["use"]]
    y = name("row", None, sort=None, scale={"domain": rows}, axis={"labelLimit": 220, "ticks": False})
    until = max([1e-3, *(bar["end"] for bar in bars)])
    zoom = {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}
    legend = {"orient": "top", "columns": ACROSS, "labelLimit": 110, "labelExpr": SHORT}
    drawn: Spec = {
        "data": {"values": bars},
        "params": [zoom],
        "mark": {"type": "bar", "clip": True, "tooltip": {"content": "data"}},
        "encoding": {
            "x": number("begin", TIME, scale={"domain": [0.0, until], "nice": False}),
            "x2": {"field": "end"},
            "y": y,
            "color": name("use", scale=colour, legend=legend),
        },
    }
    layers = [drawn]
    if len(rows) <= NAMED:
        layers.append(_labels(bars, timetable.seconds * 1e3, y, scheme))
    if timetable.committed is not None:
        layers.append(_commit((timetable.committed - timetable.begin) * 1e3, scheme))
    step = 26 if len(rows) <= NAMED else 14
    return {"layer": layers, "height": {"step": step}, "config": config(scheme)}


def _measured(timetable: Timetable) -> Iterator[dict[str, Any]]:
    zero = timetable.begin
    for lane in timetable.lanes:
        for span, begin, end in timetable.inside(lane):
            yield _bar(title(lane), span.name, span.use, begin - zero, end - zero)


def _best(timetable: Timetable, ideal: IdealStep) -> Iterator[dict[str, Any]]:
    for lane in timetable.lanes:
        for span in ideal.spans.get(lane.node, ()):
            use = IDEAL_USE[span.instruction.op]
            yield _bar(f"ideal {lane.node}", str(span.instruction), use, span.begin, span.end)


def _bar(row: str, what: str, use: str, begin: float, end: float) -> dict[str, Any]:
    ms = {"begin": round(begin * 1e3, 3), "end": round(end * 1e3, 3), "ms": round((end - begin) * 1e3, 3)}
    return {"row": row, "what": what, "use": use, **ms}


def _labels(bars: list[dict[str, Any]], whole: float, y: Spec, scheme: str) -> Spec:
    """The names of work, each where its bar has room for it, also after zooming."""
    waits = {MEANING[use] for use in ("bubble", "commit", "idle")}
    named = [
        {"row": bar["row"], "what": bar["what"], "at": (bar["begin"] + bar["end"]) / 2, "ms": bar["ms"]}
        for bar in bars
        if bar["ms"] >= whole * LEAST_NAMED and bar["use"] not in waits
    ]
    room = f"scale('x', datum.ms) - scale('x', 0) >= {LETTER} * length(datum.what)"
    fits = {"condition": {"test": room, "value": 1}, "value": 0}
    return {
        "data": {"values": named},
        "mark": {"type": "text", "fontSize": 10, "color": PAGE.on(scheme), "clip": True},
        "encoding": {"x": number("at", TIME), "y": y, "text": name("what"), "opacity": fits},
    }


def _commit(at: float, scheme: str) -> Spec:
    """Where the first node heard of the commit."""
    return {
        "data": {"values": [{"at": round(at, 3), "what": "commit"}]},
        "mark": {
            "type": "rule",
            "strokeDash": [4, 4],
            "color": RESTING.on(scheme),
            "clip": True,
            "tooltip": {"content": "data"},
        },
        "encoding": {"x": number("at", TIME)},
    }


def shares(timetable: Timetable, ideal: IdealStep | None) -> list[dict[str, object]]:
    """A line of the table for each node: milliseconds of the step by use."""
    spent = {lane.node: timetable.shares(lane) for lane in timetable.lanes}
    used = [use for use in USES if any(each[use] > 0.0 for each in spent.values())]
    lines: list[dict[str, object]] = []
    for lane in timetable.lanes:
        line: dict[str, object] = {"node": lane.node, "stages": ", ".join(map(str, lane.stages))}
        line |= {use: round(spent[lane.node][use] * 1e3, 2) for use in used}
        if ideal is not None:
            line["ideal bubble"] = round(ideal.bubble(lane.node) * 1e3, 2)
        lines.append(line)
    return lines


def path_lines(path: tuple[Leg, ...]) -> list[dict[str, object]]:
    """The critical path's legs that took time, the longest first."""
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for leg in path:
        seconds, count = found.get((leg.what, leg.node), (0.0, 0))
        found[leg.what, leg.node] = seconds + leg.seconds, count + 1
    told = sorted(found.items(), key=lambda each: -each[1][0])
    return [
        {"what": what, "node": node, "ms": round(seconds * 1e3, 2), "times": count}
        for (what, node), (seconds, count) in told
    ]

"""The charts, as Vega-Lite specifications without data, and the columns that they take. Pure.

A specification stays the same while a run goes on, so a browser changes the data in place and draws nothing anew.
"""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from math import isnan
from typing import Any

from culm.protos import coordinator_pb2 as pb
from culm.ui import palette
from culm.ui.curves import Columns, Curve
from culm.ui.incidents import Incident
from culm.ui.trends import Point
from culm.ui.words import moment, money

Spec = dict[str, Any]
SPLIT_BARS = 24  # nodes with a bar each
USES = ("forward", "backward", "redundant", "apply", "bubble", "idle")
USES_EXPLAINED = (
    "Redundant: work for stages that it stands by for. Bubble: waiting for another node's tensor. "
    "Idle: waiting for anything else."
)


def number(field: str, title: str | None, **more: object) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


def name(field: str, title: str | None = None, **more: object) -> Spec:
    return {"field": field, "type": "nominal", "title": title, **more}


def config(scheme: str) -> Spec:
    """Lines, letters and room, for one scheme."""
    muted, line = palette.MUTED.on(scheme), palette.LINE.on(scheme)
    axis = {
        "labelColor": muted, "titleColor": muted, "gridColor": line, "domainColor": line, "tickColor": line,
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelOverlap": "greedy",
    }  # fmt: skip
    return {
        "axis": axis,
        "axisX": {"grid": False, "tickCount": 8},
        "axisY": {"tickCount": 4, "domain": False, "ticks": False, "labelFlush": False},
        "legend": {"labelColor": muted, "titleColor": muted, "labelFontSize": 12, "symbolSize": 80},
        "view": {"stroke": None},
        "background": "transparent",
    }


NO_ZEROS = "datum.value ? datum.label : '0'"  # not 0M, nor 0.0%
CLOCK = {  # of an axis of time: whole days by their date, all else by the clock
    "milliseconds": "%H:%M:%S", "seconds": "%H:%M:%S", "minutes": "%H:%M", "hours": "%H:%M",
    "date": "%b %d", "week": "%b %d", "month": "%b %Y", "year": "%Y",
}  # fmt: skip


def curve_spec(curve: Curve, axis: str, x_title: str, scheme: str, height: int, elapsed: bool = False) -> Spec:
    """A curve with its spread, evaluations as points, incidents as dashed lines."""
    moments = axis == "time" and not elapsed
    x: Spec = {"field": "x", "type": "temporal" if moments else "quantitative", "title": x_title}
    x["axis"] = {"format": CLOCK} if moments else {"format": "~s" if axis == "tokens" else ",d"}
    if not moments:
        x["scale"] = {"zero": False, "nice": False}
    y = number("mean", None, scale={"zero": False}, axis={"format": curve.form})
    trained, evaluated = palette.TRAINED.on(scheme), palette.EVALUATED.on(scheme)
    shown_x: Spec = {**x, "title": x_title if axis == "step" else axis}  # a graph's step is an epoch
    layers: list[Spec] = [
        _incident_layer(x, scheme),
        {
            "data": {"name": "curve"},
            "mark": {"type": "area", "color": trained, "opacity": 0.18, "aria": False},
            "encoding": {"x": x, "y": number("low", None, scale={"zero": False}), "y2": {"field": "high"}},
        },
        {
            "data": {"name": "curve"},
            "mark": {"type": "line", "color": trained, "strokeWidth": 1.6, "aria": False},
            "encoding": {"x": x, "y": y, "tooltip": [shown_x, number("mean", "value", format=".5~g")]},
        },
    ]
    if curve.points:
        layers.append(
            {
                "data": {"name": "points"},
                "mark": {
                    "type": "line",
                    "color": evaluated,
                    "strokeWidth": 1,
                    "opacity": 0.9,
                    "aria": False,
                    "point": {"color": evaluated, "size": 30, "filled": True, "aria": False},
                },
                "encoding": {"x": x, "y": y, "tooltip": [shown_x, number("mean", "evaluated", format=".5~g")]},
            }
        )
    return {"height": height, "layer": layers, "config": config(scheme)}


def _incident_layer(x: Spec, scheme: str) -> Spec:
    kinds = list(palette.INCIDENTS)
    colours = [palette.INCIDENTS[kind].on(scheme) for kind in kinds]
    return {
        "data": {"name": "incidents"},
        "mark": {"type": "rule", "strokeDash": [3, 3], "strokeWidth": 1.4, "opacity": 0.85, "aria": False},
        "encoding": {
            "x": x,
            "color": name("kind", scale={"domain": kinds, "range": colours}, legend=None),
            "tooltip": [name("what", "incident"), name("when", "when"), name("why", "why")],
        },
    }


def curve_data(curve: Curve, incidents: Sequence[tuple[float, Incident]], zone: tzinfo = UTC) -> dict[str, Columns]:
    """What ``curve_spec`` takes, by the name of the data."""
    return {
        "curve": {"x": curve.x, "mean": curve.mean, "low": curve.low, "high": curve.high},
        "points": {"x": [x for x, _ in curve.points], "mean": [y for _, y in curve.points]},
        "incidents": incident_columns(incidents, zone),
    }


def incident_columns(incidents: Sequence[tuple[float, Incident]], zone: tzinfo = UTC) -> Columns:
    return {
        "x": [x for x, _ in incidents],
        "kind": [i.kind for _, i in incidents],
        "what": [i.title for _, i in incidents],
        "when": [moment(i.time, zone) for _, i in incidents],
        "why": [i.why[:160] for _, i in incidents],
    }


def curve_alt(curve: Curve, x_title: str, incidents: int) -> str:
    """The chart in words."""
    values = [*curve.mean, *(y for _, y in curve.points)]
    if not values:
        return f"{curve.name} over {x_title}: nothing yet"
    told = f"{curve.name} over {x_title}: {len(values)} points from {values[0]:.4g} to {curve.last:.4g}"
    return f"{told}, least {min(values):.4g}, greatest {max(values):.4g}; {incidents} incidents marked"


def trend_spec(title: str, form: str, scheme: str, zone: str, nodes: Sequence[str], height: int = 215) -> Spec:
    """Lines of nodes over time, with the spread around a median, and incidents."""
    x: Spec = {"field": "x", "type": "temporal", "title": f"time ({zone})", "axis": {"format": CLOCK}}
    colours = [palette.RUNS[i % len(palette.RUNS)].on(scheme) for i in range(len(nodes))]
    colour = name("name", scale={"domain": list(nodes), "range": colours}, legend={"orient": "top", "columns": 6})
    whole = {"tickMinStep": 1} if form == "d" else {}
    y = number("value", title, axis={"format": form, "labelExpr": NO_ZEROS, **whole}, scale={"zero": True})
    layers: list[Spec] = [
        _incident_layer(x, scheme),
        {
            "data": {"name": "lines"},
            "mark": {"type": "area", "opacity": 0.15, "aria": False},
            "encoding": {
                "x": x,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
                "color": {**colour, "legend": None},
            },
        },
        {
            "data": {"name": "lines"},
            "mark": {"type": "line", "strokeWidth": 1.6, "aria": False},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": [name("name", "node"), x, y]},
        },
    ]
    # Each layer has colours of its own: an incident's kind is no node.
    return {"height": height, "layer": layers, "resolve": {"scale": {"color": "independent"}}, "config": config(scheme)}


def trend_data(points: Sequence[Point], incidents: Sequence[Incident], zone: tzinfo = UTC) -> dict[str, Columns]:
    lines: Columns = {
        "x": [p.at * 1e3 for p in points],
        "name": [p.name for p in points],
        "value": [_known(p.value) for p in points],
        "low": [_known(p.low) for p in points],
        "high": [_known(p.high) for p in points],
    }
    return {"lines": lines, "incidents": incident_columns([(i.time * 1e3, i) for i in incidents], zone)}


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def split_rows(nodes: Sequence[pb.NodeStatus]) -> list[pb.NodeStatus]:
    """The nodes that have a bar: all, or those of the largest share of bubbles."""
    told = [node for node in nodes if busy_seconds(node) > 0]
    if len(told) <= SPLIT_BARS:
        return told
    return sorted(told, key=lambda node: -bubble_share(node))[:SPLIT_BARS]


def busy_seconds(node: pb.NodeStatus) -> float:
    return float(sum(getattr(node.times, use) for use in USES))


def bubble_share(node: pb.NodeStatus) -> float:
    busy = busy_seconds(node)
    return node.times.bubble / busy if busy > 0 else 0.0


def split_columns(nodes: Sequence[pb.NodeStatus]) -> Columns:
    """A row for each node and use: which share of its compute thread's time."""
    found: Columns = {"node": [], "what": [], "order": [], "share": [], "seconds": []}
    for node in nodes:
        busy = busy_seconds(node)
        for order, use in enumerate(USES):
            seconds = getattr(node.times, use)
            if seconds > 0:
                row = {"node": node.id, "what": use, "order": order, "share": seconds / busy, "seconds": seconds}
                for column, value in row.items():
                    found[column].append(value)
    return found


def split_spec(nodes: Sequence[pb.NodeStatus], scheme: str) -> Spec:
    """A bar for each node: how its compute thread spent its time."""
    colours = [palette.USES[use].on(scheme) for use in USES]
    legend = {"orient": "top", "columns": 3}  # a phone has room for three
    share = number("share", "share of the compute thread's time", axis={"format": "%"}, scale={"domain": [0, 1]})
    return {
        "data": {"name": "split"},
        "height": {"step": 22},
        "mark": {"type": "bar", "aria": False},
        "encoding": {
            "x": {**share, "stack": "zero"},
            "y": name("node", sort=[node.id for node in nodes]),
            "color": name("what", scale={"domain": list(USES), "range": colours}, legend=legend),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [name("node"), name("what"), {**share, "format": ".1%"}, number("seconds", "s", format=",.1f")],
        },
        "config": config(scheme),
    }


def bar_spec(scheme: str, colour: palette.Colour) -> Spec:
    """A bar for each amount of money, the largest first, with its figure."""
    return {
        "data": {"name": "amounts"},
        "height": {"step": 24},
        "mark": {"type": "bar", "color": colour.on(scheme), "aria": False},
        "encoding": {
            "x": number("dollars", None, axis=None),
            "y": name("what", sort=None, axis={"labelLimit": 320, "domain": False, "ticks": False}),
        },
        "config": config(scheme),
    }


def bar_columns(dollars: dict[str, float]) -> Columns:
    ordered = sorted(dollars.items(), key=lambda item: -item[1])
    return {
        "what": [f"{what}  {money(amount)}" for what, amount in ordered],
        "dollars": [amount for _, amount in ordered],
    }


def overlay_spec(x_title: str, y_title: str, scheme: str, runs: Sequence[str], height: int = 340) -> Spec:
    """Curves of several runs."""
    colours = [palette.RUNS[i % len(palette.RUNS)].on(scheme) for i in range(len(runs))]
    legend = {"orient": "top", "columns": 4, "labelLimit": 240}
    colour = name("run", scale={"domain": list(runs), "range": colours}, legend=legend)
    x = number("x", x_title, axis={"format": "~s"}, scale={"zero": False, "nice": False})
    y = number("value", y_title, scale={"zero": False})
    return {
        "data": {"name": "curves"},
        "height": height,
        "mark": {"type": "line", "strokeWidth": 1.6, "aria": False},
        "encoding": {"x": x, "y": y, "color": colour, "tooltip": [name("run"), x, y]},
        "config": config(scheme),
    }

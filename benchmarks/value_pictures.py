"""The pictures of docs/value.md: Vega-Lite specifications of the sweep's results, and how they are drawn."""

from typing import Any

import vl_convert

from benchmarks.strategies import BAMBOO, CULM, RESTART, WORKLOADS
from benchmarks.sweep import Cells, mean

VEGA_LITE = "6.1"
GREY = "#767c84"  # to be read on white and on black: the pictures have no ground of their own
COLOURS = {
    CULM: "#2a9150",
    BAMBOO: "#d9434e",
    "oobleck-like": "#d9a13b",
    "recycle-like": "#7a5cc9",
    "varuna-like": "#9a6a3a",
    "sample dropping": "#2f81d6",
    RESTART: "#767c84",
}
CONFIG = {
    "font": "sans-serif",
    "axis": {"labelColor": GREY, "titleColor": GREY, "domainColor": GREY, "tickColor": GREY, "gridOpacity": 0.25},
    "legend": {"labelColor": GREY, "titleColor": GREY},
    "header": {"labelColor": GREY, "titleColor": GREY},
    "title": {"color": GREY, "anchor": "start"},
    "view": {"stroke": None},
}


def draw(picture: dict[str, Any]) -> str:
    """As SVG."""
    svg: str = vl_convert.vegalite_to_svg(picture, vl_version=VEGA_LITE)
    return svg + "\n"


def _points(cells: Cells) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for workload in WORKLOADS:
        for cell, strategies in sorted(cells.items()):
            name, rate = cell.split()
            if name == workload and BAMBOO in strategies:
                base = strategies[BAMBOO]
                for strategy in COLOURS:
                    if strategy in strategies:
                        kept = strategies[strategy]
                        point = {"model": name, "rate": rate, "strategy": strategy, "lost": mean(kept, "lost")}
                        for what in ("throughput", "value"):
                            point[what] = mean(kept, what) / mean(base, what)
                        found.append(point)
    return found


def _colour() -> dict[str, Any]:
    scale = {"domain": list(COLOURS), "range": list(COLOURS.values())}
    legend = {"orient": "bottom", "title": None, "columns": 4, "labelLimit": 220, "symbolStrokeWidth": 3}
    return {"field": "strategy", "type": "nominal", "scale": scale, "legend": legend}


def _lines(field: str, title: str, domain: list[float], form: str) -> dict[str, Any]:
    y = {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"domain": domain, "clamp": True},
        "axis": {"format": form, "tickCount": 5},
    }
    return {
        "mark": {"type": "line", "point": {"size": 28}, "opacity": 0.85},
        "width": 190,
        "height": 150,
        "encoding": {
            "x": {"field": "rate", "type": "ordinal", "title": None, "axis": {"labelAngle": 0, "grid": False}},
            "y": y,
            "color": _colour(),
            "strokeWidth": {"condition": {"test": f"datum.strategy === '{CULM}'", "value": 3.5}, "value": 1.5},
        },
    }


def value(cells: Cells) -> dict[str, Any]:
    """Throughput and value of each strategy, Bamboo's being 1, by the hourly probability; a column for each model."""
    facet: dict[str, Any] = {"field": "model", "type": "nominal", "sort": list(WORKLOADS), "title": None}
    facet["header"] = {"labelFontSize": 13, "labelFontWeight": "bold"}
    rows = [
        {
            "title": f"{words.capitalize()}, Bamboo's as published being 1, by the hourly chance to lose a machine",
            "facet": facet,
            "columns": 3,
            "spec": _lines(field, words, [0.2, 2.3], ".1f"),
        }
        for field, words in (("throughput", "throughput"), ("value", "value"))
    ]
    return {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.split('.')[0]}.json",
        "data": {"values": _points(cells)},
        "vconcat": rows,
        "background": None,
        "config": CONFIG,
    }


def lost_time(cells: Cells) -> dict[str, Any]:
    """The share of the time since the first step that brought no step on: BERT, by the hourly probability."""
    chart = _lines("lost", "time that brought no step on", [0.0, 1.0], "%")
    return {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.split('.')[0]}.json",
        "data": {"values": [point for point in _points(cells) if point["model"] == "bert"]},
        "title": "BERT: time lost, by the hourly probability that a machine goes; 77 % is the paper's",
        **chart,
        "width": 460,
        "height": 220,
        "background": None,
        "config": CONFIG,
    }

"""The results as a picture: how far each figure is on the way from its floor to its aim.

``python -m benchmarks.plots`` draws ``benchmarks/results.svg`` from ``benchmarks/results.json``. The picture is made
as a Vega-Lite specification and drawn by vl-convert, which ``pip install 'culm[bench]'`` brings.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
PICTURE = Path(__file__).with_name("results.svg")
VEGA_LITE = "6.1"
LOWEST, HIGHEST = -3.0, 4.0  # what lies beyond is drawn at the edge; its numbers stand beside it
GREY = "#767c84"  # these are to be read on white and on black: the picture has no ground of its own
MISSED, HOLDS, REACHED = "#d9434e", "#2f81d6", "#2a9150"
LINES = "datum.value == 0 || datum.value == 1"
COLOURS = {"floor missed": MISSED, "floor holds": HOLDS, "aim reached": REACHED}


def way(value: float, floor: float, aim: float) -> float:
    """0 at the floor, 1 at the aim, whichever of them is the larger number; cut off at the picture's edges."""
    return round(min(max((value - floor) / (aim - floor), LOWEST), HIGHEST), 4)


def row(name: str, measure: dict[str, Any]) -> dict[str, object]:
    """What is drawn of one measure of ``results.json``."""
    value, floor, aim = measure["value"], measure["floor"], measure["aim"]
    ends = [way(x, floor, aim) for x in measure["rounds"]]
    at = way(value, floor, aim)
    return {
        "measure": name,
        "at": at,
        "from": min(ends),
        "to": max(ends),
        "verdict": "floor missed" if not measure["holds"] else "aim reached" if at >= 1 else "floor holds",
        "numbers": f"{value:.2f} (floor {floor:g}, aim {aim:g})",
    }


def picture(results: dict[str, Any]) -> dict[str, Any]:
    """The Vega-Lite specification of the whole of ``results.json``."""
    y: dict[str, Any] = {
        "field": "measure",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 420, "grid": False, "domain": False, "ticks": False, "labelPadding": 12},
    }
    words = {"0": "floor", "1": "aim"}
    named = " : ".join(f"datum.value == {at} ? '{word}'" for at, word in words.items())
    axis: dict[str, Any] = {
        "values": list(range(int(LOWEST), int(HIGHEST) + 1)),
        "labelExpr": f"{named} : ''",
        "orient": "top",
    }
    axis |= {
        "gridColor": GREY,
        "gridDash": [2, 3],
        "gridOpacity": {"condition": {"test": LINES, "value": 1}, "value": 0},
    }
    axis |= {"ticks": False, "domain": False, "labelFontWeight": "bold"}
    x = {"type": "quantitative", "title": None, "axis": axis, "scale": {"domain": [LOWEST, HIGHEST], "nice": False}}
    colour = {
        "field": "verdict",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
        "legend": {"orient": "bottom", "symbolType": "circle", "symbolOpacity": 1},
    }
    spread = {
        "mark": {"type": "rule", "strokeWidth": 4, "opacity": 0.6, "strokeCap": "round"},
        "encoding": {"x": {"field": "from", **x}, "x2": {"field": "to"}, "color": colour},
    }
    middle = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {"x": {"field": "at", **x}, "color": colour},
    }
    numbers = {
        "mark": {"type": "text", "align": "left", "fontSize": 12, "color": GREY},
        "encoding": {"x": {"value": {"expr": "width + 12"}}, "text": {"field": "numbers"}},
    }
    return {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.split('.')[0]}.json",
        "data": {"values": [row(name, measure) for name, measure in results["measures"].items()]},
        "width": 320,
        "height": {"step": 24},
        "background": None,
        "padding": 5,
        "encoding": {"y": y},
        "layer": [spread, middle, numbers],
        "config": {
            "font": "sans-serif",
            "axis": {"labelColor": GREY, "labelFontSize": 12},
            "legend": {"labelColor": GREY, "labelFontSize": 12},
            "view": {"stroke": None},
        },
    }


def draw(results: dict[str, Any]) -> str:
    """The picture as SVG. Raises ImportError where vl-convert is missing."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(picture(results), vl_version=VEGA_LITE)
    return svg + "\n"


def main() -> None:
    PICTURE.write_text(draw(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()

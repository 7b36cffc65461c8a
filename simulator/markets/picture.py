"""Rows as a picture: where the wall time of each strategy went, and what a dollar bought.

Made as a Vega-Lite specification and drawn by vl-convert, which ``pip install 'culm[bench]'`` brings.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from culm.pipeline.errors import Unavailable
from culm.simulator.markets.account import Row, Use

VEGA_LITE = "6.1"
GREY = "#767c84"  # it is to be read on white and on black: the picture has no ground of its own
SHARES, WHOLE = {"format": "%", "grid": False}, {"domain": [0, 1]}
COLOURS = {
    Use.USEFUL: "#2a9150",
    Use.REDUNDANCY: "#2f81d6",
    Use.SEEDING: "#7a5cc9",
    Use.REDONE: "#d9a13b",
    Use.WAITING: "#9aa1a9",
    Use.ROLLBACK: "#d9434e",
}


def draw(results: Mapping[str, Sequence[Row]]) -> str:
    """As SVG, a trace below the other. Raises Unavailable where vl-convert is missing."""
    try:
        import vl_convert
    except ImportError as error:
        raise Unavailable("pictures need vl-convert: pip install 'culm[bench]'") from error
    svg: str = vl_convert.vegalite_to_svg(picture(results), vl_version=VEGA_LITE)
    return svg + "\n"


def picture(results: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """The Vega-Lite specification: for each trace where the time went, and what a dollar bought."""
    shares = [
        {
            "trace": trace,
            "strategy": row.strategy,
            "use": use,
            "share": seconds / row.seconds if row.seconds else 0.0,
            "order": list(COLOURS).index(Use(use)),
        }
        for trace, found in results.items()
        for row in found
        for use, seconds in row.spent.items()
    ]
    figures = [
        {"trace": trace, "strategy": row.strategy, "value": row.value, "words": f"{row.value:.2f}"}
        for trace, found in results.items()
        for row in found
    ]
    strategy = {"field": "strategy", "type": "nominal", "sort": None, "title": None}
    labelled = {**strategy, "axis": {"labelLimit": 200, "domain": False, "ticks": False}}
    scale = {"domain": [use.value for use in COLOURS], "range": list(COLOURS.values())}
    time = {
        "data": {"values": shares},
        "mark": {"type": "bar", "height": {"band": 0.75}},
        "width": 300,
        "encoding": {
            "y": labelled,
            "x": {
                "field": "share",
                "type": "quantitative",
                "title": "wall time",
                "axis": {"format": "%", "grid": False},
            },
            "color": {"field": "use", "type": "nominal", "title": None, "scale": scale, "legend": {"orient": "bottom"}},
            "order": {"field": "order"},
        },
    }
    bars = {"mark": {"type": "bar", "height": {"band": 0.75}, "color": "#2f81d6"}}
    words = {
        "mark": {"type": "text", "align": "left", "dx": 4, "color": GREY},
        "encoding": {"text": {"field": "words"}},
    }
    value = {
        "data": {"values": figures},
        "width": 160,
        "encoding": {
            "y": {**strategy, "axis": None},
            "x": {
                "field": "value",
                "type": "quantitative",
                "title": "samples/s for each $/h",
                "axis": {"grid": False, "tickCount": 4},
            },
        },
        "layer": [bars, words],
    }
    charts = [
        {
            "title": {"text": trace, "anchor": "start", "color": GREY},
            "hconcat": [_of_trace(time, trace), _of_trace(value, trace)],
        }
        for trace in results
    ]
    return {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.split('.')[0]}.json",
        "vconcat": charts,
        "background": None,
        "config": {
            "font": "sans-serif",
            "axis": {"labelColor": GREY, "titleColor": GREY, "domainColor": GREY, "tickColor": GREY},
            "legend": {"labelColor": GREY},
            "view": {"stroke": None},
        },
    }


def _of_trace(chart: dict[str, Any], trace: str) -> dict[str, Any]:
    return {**chart, "transform": [{"filter": {"field": "trace", "equal": trace}}]}

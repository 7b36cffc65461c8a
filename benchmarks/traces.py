"""Traces under every strategy: ``python -m benchmarks.traces FILE...`` writes ``traces.json`` and ``traces.svg`` here.

Nothing is timed: the same traces give the same figures anywhere.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.plots import GREY, VEGA_LITE
from simulator.account import Row, Use
from simulator.compare import as_json, rows
from simulator.profile import Cluster
from simulator.trace import read_trace
from simulator.workload import PUBLISHED

RESULTS = Path(__file__).with_name("traces.json")
PICTURE = Path(__file__).with_name("traces.svg")
SHARES, WHOLE = {"format": "%", "grid": False}, {"domain": [0, 1]}
COLOURS = {
    Use.USEFUL: "#2a9150",
    Use.REDUNDANCY: "#2f81d6",
    Use.SEEDING: "#7a5cc9",
    Use.REDONE: "#d9a13b",
    Use.WAITING: "#9aa1a9",
    Use.ROLLBACK: "#d9434e",
}


def simulated(path: str, model: str) -> list[dict[str, Any]]:
    """A row for each strategy over the whole trace."""
    changes = read_trace(path)
    found: list[Row] = []
    for row in rows(changes, PUBLISHED[model], changes[-1].at, Cluster()):
        found.append(row)
        print(f"  {row.strategy:26} {row.throughput:7.1f} samples/s {row.cost_per_hour:6.2f} $/h value {row.value:.2f}")
    return as_json(found)


def picture(results: dict[str, Any]) -> dict[str, Any]:
    """The Vega-Lite specification: for each trace where the time went, and what a dollar bought."""
    shares = [
        {
            "trace": trace,
            "strategy": row["strategy"],
            "use": use,
            "share": seconds / row["seconds"] if row["seconds"] else 0.0,
            "order": list(COLOURS).index(Use(use)),
        }
        for trace, found in results.items()
        for row in found
        for use, seconds in row["spent"].items()
    ]
    figures = [
        {"trace": trace, "strategy": row["strategy"], "value": row["value"], "words": f"{row['value']:.2f}"}
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


def main() -> None:
    import vl_convert

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE")
    parser.add_argument("--model", choices=PUBLISHED, default="bert")
    arguments = parser.parse_args()
    results = {}
    for path in arguments.traces:
        print(Path(path).name)
        results[Path(path).name] = simulated(path, arguments.model)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PICTURE.write_text(vl_convert.vegalite_to_svg(picture(results), vl_version=VEGA_LITE) + "\n")


if __name__ == "__main__":
    main()

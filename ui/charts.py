"""The charts, as Vega-Lite specifications. Pure."""

from math import isfinite
from typing import Any

from culm.pipeline.money.ledger import USES
from culm.protos import coordinator_pb2 as pb
from culm.ui.history import History, Preemption
from culm.ui.words import clock, money

Spec = dict[str, Any]
POINTS = 500  # of the loss curve at most
LOST = "#d9434e"
EVALUATED = "#e8871a"
GREY = "#80868f"  # readable on a light page and on a dark one
PHASES = ("detect", "promote", "resume", "redundancy restored")
MEANING = {
    "forward": "forward",
    "backward": "backward",
    "redundant": "redundant (for stages it stands by for)",
    "apply": "apply",
    "bubble": "bubble (waiting for another node's tensor)",
    "idle": "idle (waiting for anything else)",
}


def number(field: str, title: str | None, **more: object) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


def name(field: str, title: str | None = None, **more: object) -> Spec:
    return {"field": field, "type": "nominal", "title": title, **more}


def loss_curve(history: History) -> Spec:
    """The loss by step, thinned out, with a dashed line where a node was lost, and a point for each evaluation."""
    stride = max(1, len(history.steps) // POINTS)
    kept = sorted({*range(0, len(history.steps), stride), len(history.steps) - 1})
    points = [{"step": history.steps[i], "loss": history.losses[i]} for i in kept]
    lost = [{"step": p.step, "node": p.node, "what": p.kind} for p in history.preemptions]
    curve = {
        "data": {"values": points},
        "mark": {"type": "line", "tooltip": True},
        "encoding": {"x": number("step", "step"), "y": number("loss", "loss", scale={"zero": False})},
    }
    rules = {
        "data": {"values": lost},
        "mark": {"type": "rule", "strokeDash": [4, 4], "color": LOST, "opacity": 0.7, "tooltip": {"content": "data"}},
        "encoding": {"x": number("step", "step")},
    }
    found = [{"step": s, "loss": x["loss"]} for s, x in history.evaluations.items() if isfinite(x["loss"])]
    evaluated = {
        "data": {"values": found[-POINTS:]},
        "mark": {"type": "point", "filled": True, "size": 70, "color": EVALUATED, "tooltip": {"content": "data"}},
        "encoding": {"x": number("step", "step"), "y": number("loss", "loss", scale={"zero": False})},
    }
    return {"layer": [curve, rules, evaluated], "height": 320}


def timeline(preemptions: list[Preemption]) -> Spec:
    """A row for each lost node: how long each phase took until it was over, in milliseconds, logarithmic."""
    values = []
    for p in preemptions:
        done = (p.detect_ms, p.promote_ms, p.resume_ms, p.restored_ms)
        for phase, ms in zip(PHASES, done, strict=True):
            if ms is not None:
                values.append({"which": f"{clock(p.time)} {p.node}", "phase": phase, "ms": max(ms, 0.1), "why": p.why})
    legend = {"orient": "top"}
    return {
        "data": {"values": values},
        "height": {"step": 26},
        "mark": {"type": "point", "filled": True, "size": 110, "tooltip": {"content": "data"}},
        "encoding": {
            "x": number("ms", "milliseconds", scale={"type": "log"}),
            "y": name("which", sort=None),
            "color": name("phase", sort=list(PHASES), legend=legend),
            "shape": name("phase", sort=list(PHASES), legend=legend),
        },
    }


def time_split(nodes: list[pb.NodeStatus]) -> Spec:
    """A bar for each node: how its compute thread spent its time, in shares."""
    values = [
        {"node": node.id, "what": MEANING[use], "order": order, "seconds": round(getattr(node.times, use), 3)}
        for node in nodes
        for order, use in enumerate(USES)
        if getattr(node.times, use) > 0
    ]
    legend = {"orient": "top", "columns": 3, "labelLimit": 320}
    return {
        "data": {"values": values},
        "height": {"step": 34},
        "mark": {"type": "bar", "tooltip": {"content": "data"}},
        "encoding": {
            "x": number("seconds", "share of the compute thread's time", stack="normalize", axis={"format": "%"}),
            "y": name("node"),
            "color": name("what", sort=list(MEANING.values()), legend=legend),
            "order": {"field": "order", "type": "quantitative"},
        },
    }


def bars(dollars: dict[str, float]) -> Spec:
    """A bar for each amount, the largest first, with its figure."""
    values = [{"what": what, "dollars": amount, "label": money(amount)} for what, amount in dollars.items()]
    axis = {"labelLimit": 220}
    bar = {"mark": {"type": "bar", "tooltip": True}}
    label = {"mark": {"type": "text", "align": "left", "dx": 4, "color": GREY}, "encoding": {"text": name("label")}}
    return {
        "data": {"values": values},
        "height": {"step": 30},
        "encoding": {"x": number("dollars", "$"), "y": name("what", sort="-x", axis=axis)},
        "layer": [bar, label],
    }

"""The tables and pictures of docs/value.md: ``python -m benchmarks.tables`` makes them from the results beside it.

It writes ``docs/value_tables.md``, ``benchmarks/value.svg`` and ``benchmarks/lost_time.svg``, and the page of graphs,
``docs/graphs_value.md``. What has not been run has no row. ``make tables`` runs everything first.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.strategies import ALL, MACHINES, RESTART, WORKLOADS
from benchmarks.sweep import Cells, deviation, mean
from benchmarks.sweep import read as read_sweep
from culm.simulator.markets.compare import PIPELINES
from culm.simulator.markets.other_systems import on_demand
from culm.simulator.markets.workload import PUBLISHED, fitted

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "value_tables.md"
HOUR = 3600.0
# What Bamboo's released simulator gave over 400 seeds of BERT: samples/s, $/h, value.
RELEASED = {
    "0.01": (149.0, 39.8, 3.70),
    "0.05": (137.0, 38.5, 3.51),
    "0.10": (132.0, 37.0, 3.54),
    "0.25": (115.0, 32.1, 3.55),
    "0.50": (83.0, 24.5, 3.31),
}
ON_DEMAND = {name: on_demand(work, HOUR) for name, work in PUBLISHED.items()}


def results(name: str) -> dict[str, Any]:
    path = HERE / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def table(columns: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"] + [
        f"| {' | '.join(row)} |" for row in rows
    ]


def rates(cells: Cells, workload: str) -> list[str]:
    return sorted(cell.split()[1] for cell in cells if cell.split()[0] == workload)


def fits() -> Iterator[str]:
    yield "## What the published times come to"
    yield ""
    yield "Microbatches of a step, seconds of one at a stage, and by how much the fit misses each published time."
    yield ""
    rows = []
    for name, work in PUBLISHED.items():
        fit = fitted(work)
        missed = ", ".join(f"{d}: {100 * fit.off[d]:+.1f} %" for d in sorted(fit.off))
        rows.append([name, str(work.stages), str(fit.microbatches), f"{fit.each:.4f}", missed, str(PIPELINES[name])])
    yield from table(["model", "stages", "microbatches", "seconds", "missed, by pipelines", "Culm's pipelines"], rows)


def sweep(cells: Cells) -> Iterator[str]:
    yield "## Random markets"
    for name in WORKLOADS:
        if not rates(cells, name):
            continue
        bought = ON_DEMAND[name]
        yield f"\n### {name}\n"
        yield (
            f"On demand: {bought.throughput:.1f} samples/s, {bought.cost_per_hour:.2f} $/h, value {bought.value:.2f}, "
            f"{PUBLISHED[name].on_demand_machines} machines as published.\n"
        )
        rows = []
        for rate in rates(cells, name):
            found = cells[f"{name} {rate}"]
            slow = mean(found[RESTART], "throughput") if RESTART in found else 0.0
            for strategy in ALL:
                if strategy in found:
                    rows.append([rate, strategy, *_cells(found[strategy], slow, bought.value)])
            if name == "bert" and rate in RELEASED:
                speed, cost, value = RELEASED[rate]
                rows.append([rate, "Bamboo's own simulator", f"{speed:.0f}", f"{cost:.1f}", f"{value:.2f}", *[""] * 6])
        columns = ["hourly", "strategy", "samples/s", "$/h", "value", "lost nodes", "fatal", "time lost"]
        yield from table([*columns, "of restart's speed", "of on-demand's value", "seeds"], rows)


def _cells(kept: dict[str, Any], slow: float, bought: float) -> list[str]:
    speed, value = mean(kept, "throughput"), mean(kept, "value")
    return [
        f"{speed:.1f} ± {deviation(kept, 'throughput'):.1f}",
        f"{mean(kept, 'cost_per_hour'):.2f}",
        f"{value:.2f} ± {deviation(kept, 'value'):.2f}",
        f"{mean(kept, 'preemptions'):.1f}",
        f"{mean(kept, 'fatal'):.2f}",
        f"{100 * mean(kept, 'lost'):.0f} %",
        f"{speed / slow:.2f}" if slow else "",
        f"{value / bought:.2f}",
        str(kept["seeds"]),
    ]


def traces(found: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    yield "## Traces"
    for name in WORKLOADS:
        rows = []
        for cell, strategies in found.items():
            if cell.split(maxsplit=1)[0] != name:
                continue
            slow = strategies[RESTART]["throughput"]
            for strategy, x in strategies.items():
                faster = f"{x['throughput'] / slow:.2f}" if slow else ""
                rows.append(
                    [
                        cell.split(maxsplit=1)[1],
                        strategy,
                        f"{x['throughput']:.1f}",
                        f"{x['cost_per_hour']:.2f}",
                        f"{x['value']:.2f}",
                        f"{x['preemptions']:.0f}",
                        f"{x['fatal']:.0f}",
                        f"{100 * x['lost']:.0f} %",
                        faster,
                        f"{x['value'] / ON_DEMAND[name].value:.2f}",
                    ]
                )
        if rows:
            yield f"\n### {name} over traces\n"
            columns = ["trace", "strategy", "samples/s", "$/h", "value", "lost nodes", "fatal", "time lost"]
            yield from table([*columns, "of restart's speed", "of on-demand's value"], rows)


def bubbles(found: dict[str, Any]) -> Iterator[str]:
    yield "## Whether bubbles suffice"
    yield ""
    yield "Room: the share of a stage's forwards that the bubbles of the node before it hold, stage by stage."
    yield ""
    rows = [
        [
            name,
            f"{x['stages']} x {x['microbatches']}",
            f"{100 * min(x['bubble']):.0f} to {100 * max(x['bubble']):.0f} %",
            " ".join(f"{100 * share:.0f}" for share in x["room"]),
            f"{100 * x['longer_filled']:.0f} to {100 * x['longer_plain']:.0f} %",
        ]
        for name, x in found.items()
    ]
    yield from table(
        ["model", "stages x microbatches", "bubbles of a step", "room, %", "all of it makes a step longer by"], rows
    )
    yield ""
    yield "What a lost node costs in redone work, what a standby holds, and 1,000 steps at 0.10 an hour in dollars:"
    yield ""
    rows = [
        [
            name,
            *(f"{x[f'{way}_redone']:.2f} s" for way in ("lazy", "eager", "peers")),
            f"{x['standby_bytes'] / 1e6:.0f} MB, none",
            *(f"{x['money'][way]:.3f}" for way in ("lazy", "eager", "peers")),
            f"{x['money']['all']:.2f}",
        ]
        for name, x in found.items()
    ]
    columns = ["model", "lazy redoes", "eager", "peers", "standby, peer"]
    yield from table([*columns, "lazy costs $", "eager", "peers", "of $"], rows)


def assumed(found: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    yield "## What is assumed"
    yield ""
    yield "BERT in one market for eight hours, at 0.10 and at 0.50 an hour: samples/s, value."
    yield ""
    rows = [
        [name, *(f"{x['throughput']:.1f}, {x['value']:.2f}" for _, x in sorted(by_rate.items()))]
        for name, by_rate in found.items()
    ]
    yield from table(["variant", "0.10", "0.50"], rows)


def page() -> str:
    lines = [
        "# The tables of the value page",
        "",
        f"[value.md](value.md) tells what they show. {MACHINES} machines for every strategy but on-demand.",
        "`make tables` makes them again. Means ± standard deviations of single runs; value is samples/s for each $/h.",
        "",
        *fits(),
        "",
        *sweep(read_sweep()),
        "",
    ]
    for name, part in (("traces", traces), ("bubbles", bubbles), ("assumed", assumed)):
        if found := results(name):
            lines += [*part(found), ""]
    return "\n".join(lines)


def main() -> None:
    from benchmarks.graph_value_page import write as write_page_of_graphs
    from benchmarks.value_pictures import draw, lost_time, value

    write_page_of_graphs()
    cells = read_sweep()
    PAGE.write_text(page())
    (HERE / "value.svg").write_text(draw(value(cells)))
    (HERE / "lost_time.svg").write_text(draw(lost_time(cells)))


if __name__ == "__main__":
    main()

"""What the page on graphs reckons from results: ratios, simulated and published; and how it lays them out."""

from textwrap import fill
from typing import Any

from benchmarks.graph_value import CPU_AHEAD, WORKERS
from culm.simulator.graphs.hardware import cpu_server, function
from culm.simulator.graphs.published import JOBS
from culm.simulator.graphs.published import RESULTS as PUBLISHED

Figures = dict[str, Any]


def filled(text: str) -> str:
    """In lines of the repository's width."""
    indent = "  " if text.startswith("- ") else ""
    return fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table(columns: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"] + [
        f"| {' | '.join(row)} |" for row in rows
    ]


def times(base: Figures, other: Figures) -> tuple[float, float, float]:
    """How many times faster, cheaper, and better by 1 / (time x cost) the other one is."""
    faster, cheaper = base["seconds"] / other["seconds"], base["dollars"] / other["dollars"]
    return faster, cheaper, faster * cheaper


def published(name: str, base: str) -> tuple[float, float, float]:
    """The same of the published results; ``base``: cpu or gpu, against workers."""
    ways = PUBLISHED[name]
    of, against = (ways["cpu"], ways["gpu"])[base == "gpu"], ways["workers"]
    faster, cheaper = of[0] / against[0], of[1] / against[1]
    return faster, cheaper, faster * cheaper


def billed(name: str) -> float:
    """Workers of a server that the published cost pays for: what the servers do not cost, by a function's price."""
    seconds, dollars = PUBLISHED[name]["workers"]
    job = JOBS[name]
    hours = seconds / 3600
    of_servers = hours * job.servers * cpu_server(job.instance_type).dollars
    return (dollars - of_servers) / (hours * function().dollars) / job.servers


def tensor_share(of: Figures) -> float:
    """Of the cores' time with CPU servers: what of it is gone once workers do the tensor work."""
    alone, helped = of[CPU_AHEAD], of[WORKERS]
    return float(1 - helped["seconds"] * helped["cores"] / (alone["seconds"] * alone["cores"]))


def operation_price() -> float:
    server, worker = cpu_server("c5n.2xlarge"), function()
    return (worker.dollars / worker.operations) / (server.dollars / server.cores / server.operations)

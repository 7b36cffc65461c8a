"""What the coordinator costs: ``python -m benchmarks.coordination`` prints medians, spreads and ratios.

The coordinator and its Redis are the real processes, started as the launcher starts them. The nodes are simulated:
each has a connection of its own and speaks Attend as a stage server does (Join, Available, a heartbeat a second, Ready
for every stage that it holds, PeerLost), but computes nothing. All of them live on one event loop of one process.

1,000 attached nodes are 1,000 that take part, in two shapes, one after the other. In the *line* one pipeline has 990
stages, each owned by one node and stood by for by another, and the rest are the spares that repair is done with. In
the *grid* 125 pipelines run on as many replicas of 8 stages, so that every stage has 125 owners.

They commit a step every ``STEP_SECONDS``, which is quick for a pipeline of that depth: every commit of the line waits
for two Readies a stage, of the grid for one a node. A node is lost when its Attend stream ends and its peers report it.
What counts is the time until the last remaining node has the new plan's order in hand. The node does not decode it:
real ones do so side by side, each on a machine of its own. What the simulated nodes themselves take of the machine's
cores is part of every time.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.awake import awake_cores
from benchmarks.measure import Measure
from benchmarks.paced import job_file
from benchmarks.processes import cpu_seconds
from benchmarks.simulated import Herd
from culm.local.cluster import LocalCluster
from culm.pipeline.job import load_job

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
MICROBATCHES = 8  # of a pipeline


class Shape(NamedTuple):
    """Nodes that attend a run, and what it makes of them."""

    nodes: int
    stages: int
    pipelines: int
    layers: int


SHAPES = {
    "line": Shape(nodes=1000, stages=990, pipelines=1, layers=990),
    "grid": Shape(nodes=1000, stages=8, pipelines=125, layers=96),
}
SMALL = {  # their commits are timed
    "line": Shape(nodes=8, stages=8, pipelines=1, layers=8),
    "grid": Shape(nodes=8, stages=2, pipelines=4, layers=8),
}
STEP_SECONDS = 10.0
CPU_SECONDS = 25.0
LOST = 10
WARM, COMMITS = 20, 200
PAUSE_SECONDS = 0.01  # of the small pipeline's step, in which everybody but the last is ready
JOB_SETTINGS: dict[str, Any] = {
    "steps": 1_000_000,
    "microbatches": MICROBATCHES,
    "forward": 0.01,
    "backward": 0.02,
    "redundancy": "lazy",
}


@contextmanager
def _coordinator(shape: Shape) -> Iterator[tuple[str, int]]:
    """The address and the process id of a coordinator of a run of that shape, which waits for the nodes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = job_file(folder, stages=shape.stages, **JOB_SETTINGS)
        path.write_text(path.read_text().replace(f"count = {shape.stages},", f"count = {shape.layers},"))
        job = load_job(path, [f"pipeline.pipelines={shape.pipelines}"])
        # The set of nodes counts as settled soon, so that every commit asks whether another cut would pay.
        environments = {"coordinator": {"CULM_SETTLE_SECONDS": "5"}}
        waits_for = shape.pipelines * shape.stages
        with LocalCluster(
            job, ROOT, 0, folder=folder / "run", environments=environments, patience=5.0, waits_for=waits_for
        ) as cluster:
            yield cluster.address, cluster.pids()["coordinator"]


async def _steps(herd: Herd, seconds: float) -> None:
    """Commits for that long."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, STEP_SECONDS))
        if left > STEP_SECONDS:
            await herd.step()


async def _busy(herd: Herd, pid: int) -> float:
    """Percent of one core that the coordinator takes of a steady state."""
    await _steps(herd, STEP_SECONDS)
    cpu, wall = cpu_seconds(pid), time.monotonic()
    await _steps(herd, CPU_SECONDS)
    return 100 * (cpu_seconds(pid) - cpu) / (time.monotonic() - wall)


async def _lose(herd: Herd, count: int, draw: random.Random) -> list[float]:
    """Milliseconds from each lost node to the plan at the last remaining node."""
    times = []
    for _ in range(count):
        await herd.step()  # what is being seeded becomes hot
        await asyncio.sleep(draw.uniform(0.5, 1.5))
        times.append(1e3 * await herd.lose(draw))
    return times


def _with_herd(shape: Shape, what: Callable[[Herd, int], Awaitable[T]]) -> T:
    """What comes of it once the nodes of a new cluster have their plan."""

    async def go(address: str, pid: int) -> T:
        async with Herd(address, shape.nodes, shape.layers, shape.pipelines * MICROBATCHES) as herd:
            return await what(herd, pid)

    with _coordinator(shape) as (address, pid):
        return asyncio.run(go(address, pid))


def _cpu(shape: Shape) -> float:
    return _with_herd(shape, _busy)


def _lost(shape: Shape, count: int, seed: int) -> list[float]:
    return _with_herd(shape, lambda herd, pid: _lose(herd, count, random.Random(seed)))


def _commits(shape: Shape, count: int) -> list[float]:
    async def commits(herd: Herd, pid: int) -> list[float]:
        return [1e3 * await herd.step(PAUSE_SECONDS) for _ in range(WARM + count)][WARM:]

    return _with_herd(shape, commits)


def _apart(what: Callable[..., T], *arguments: Any) -> T:
    """Done by a new process: gRPC's own thread goes on for every event loop that there was, and takes its time."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(what, *arguments).result()


def heartbeats_cpu(shape: Shape) -> float:
    """Percent of one core that the coordinator of these nodes takes."""
    return _apart(_cpu, shape)


def lost_to_plan_ms(shape: Shape, count: int = LOST, seed: int = 0) -> list[float]:
    """Milliseconds from each of several lost nodes until every remaining node has the plan that answers it."""
    return _apart(_lost, shape, count, seed)


def commit_round_trip_ms(shape: Shape, count: int = COMMITS) -> list[float]:
    """Milliseconds from the moment when the last node sends its Ready until the last node has received the commit."""
    return _apart(_commits, shape, count)


def measures(number: int) -> list[Measure]:
    """The group of measures of ``python -m benchmarks``: one round, on clusters of its own."""
    busy = {way: heartbeats_cpu(shape) for way, shape in SHAPES.items()}
    late = {way: p99(lost_to_plan_ms(shape, seed=number)) for way, shape in SHAPES.items()}
    commit = {way: statistics.median(commit_round_trip_ms(shape)) for way, shape in SMALL.items()}
    nodes, few = SHAPES["line"].nodes, SMALL["line"].nodes
    rows = [
        (f"coordinator, {nodes} nodes at a heartbeat a second", "% of a core", 50, 15, busy),
        (f"a lost node to the new plan at each of {nodes} nodes, p99", "ms", 200, 50, late),
        (f"the last Ready to the commit at each of {few} nodes", "ms", 5, 2, commit),
    ]
    found = []
    for name, unit, floor, aim, values in rows:
        found.append(Measure(name=name, unit=unit, floor=floor, aim=aim, rounds=[values["line"]]))
        ratio = values["grid"] / values["line"]
        found.append(Measure(name=f"{name}: a grid against a line", unit="ratio", floor=1.5, aim=1.0, rounds=[ratio]))
    return found


def p99(values: list[float]) -> float:
    """The value that one in a hundred exceeds; of fewer than a hundred the largest."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def _in_words(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.2f} {unit} ({min(values):.2f} to {max(values):.2f}, p99 {p99(values):.2f})"


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=["cpu", "lost", "commit"], default=["cpu", "lost", "commit"])
    parser.add_argument("--ways", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--lost", type=int, default=LOST)
    arguments = parser.parse_args()
    # What, and of which shape: a value a round, the worst one for lost nodes, and all values.
    rounds: dict[tuple[str, str], list[float]] = {(what, way): [] for what in arguments.only for way in arguments.ways}
    values: dict[tuple[str, str], list[float]] = {each: [] for each in rounds}
    units = {"cpu": "% of a core", "lost": "ms", "commit": "ms"}
    for number in range(arguments.rounds):
        for what, way in rounds:
            if what == "cpu":
                found = [heartbeats_cpu(SHAPES[way])]
            elif what == "lost":
                found = lost_to_plan_ms(SHAPES[way], arguments.lost, number)
            else:
                found = commit_round_trip_ms(SMALL[way])
            values[what, way] += found
            rounds[what, way].append(p99(found) if what == "lost" else statistics.median(found))
            print(f"round {number}, {what}, {way}: {_in_words(found, units[what])}", flush=True)
    for what, way in values:
        print(f"{what}, {way}: {_in_words(values[what, way], units[what])}", flush=True)
    for what in arguments.only if set(arguments.ways) == set(SHAPES) else ():
        ratios = [grid / line for grid, line in zip(rounds[what, "grid"], rounds[what, "line"], strict=True)]
        print(f"{what}: a grid against a line {_in_words(ratios, 'times')}; floor 1.5", flush=True)


if __name__ == "__main__":
    main()

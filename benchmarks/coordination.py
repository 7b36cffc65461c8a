"""What the coordinator costs: ``python -m benchmarks.coordination`` prints medians and spreads.

The coordinator and its Redis are the real processes, started as the launcher starts them. The nodes are simulated:
each has a connection of its own and speaks Attend as a stage server does (Join, Available, a heartbeat a second, Ready
for every stage that it holds, PeerLost), but computes nothing. All of them live on one event loop of one process.

1,000 attached nodes are 1,000 that take part: ``STAGES`` stages, each owned by one node and stood by for by another,
and the rest as the spares that repair is done with. They commit a step every ``STEP_SECONDS``, which is quick for a
pipeline of that depth: every commit waits for two Readies a stage. A node is lost when its Attend stream ends and its
neighbours report it. What counts is the time until the last remaining node has the new plan's order in hand. The node
does not decode it: real ones do so side by side, each on a machine of its own. What the simulated nodes themselves
take of the machine's cores is part of every time.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.awake import awake_cores
from benchmarks.measure import Measure
from benchmarks.paced import job_file
from benchmarks.simulated import Herd
from culm.local.cluster import LocalCluster
from culm.pipeline.job import load_job

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
NODES, STAGES = 1000, 990
STEP_SECONDS = 10.0
CPU_SECONDS = 25.0
LOST = 10
SMALL = 8  # nodes whose commits are timed
WARM, COMMITS = 20, 200
PAUSE_SECONDS = 0.01  # of the small pipeline's step, in which everybody but the last is ready
JOB_SETTINGS: dict[str, Any] = {
    "steps": 1_000_000,
    "microbatches": 8,
    "forward": 0.01,
    "backward": 0.02,
    "redundancy": "lazy",
}


@contextmanager
def _coordinator(stages: int) -> Iterator[tuple[str, int]]:
    """The address and the process id of a coordinator of a run with that many stages, and no nodes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = load_job(job_file(folder, stages=stages, **JOB_SETTINGS))
        # The set of nodes counts as settled soon, so that every commit asks whether another cut would pay.
        environments = {"coordinator": {"CULM_SETTLE_SECONDS": "5"}}
        run = folder / "run"
        with LocalCluster(job, ROOT, 0, folder=run, environments=environments, patience=5.0) as cluster:
            yield cluster.address, cluster.pids()["coordinator"]


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    cpu, wall = _cpu_seconds(pid), time.monotonic()
    await _steps(herd, CPU_SECONDS)
    return 100 * (_cpu_seconds(pid) - cpu) / (time.monotonic() - wall)


async def _lose(herd: Herd, count: int, draw: random.Random) -> list[float]:
    """Milliseconds from each lost node to the plan at the last remaining node."""
    times = []
    for _ in range(count):
        await herd.step()  # what is being seeded becomes hot
        await asyncio.sleep(draw.uniform(0.5, 1.5))
        times.append(1e3 * await herd.lose(draw))
    return times


def _with_herd(nodes: int, stages: int, what: Callable[[Herd, int], Awaitable[T]]) -> T:
    """What comes of it once the nodes of a new cluster have their plan."""

    async def go(address: str, pid: int) -> T:
        async with Herd(address, nodes, stages) as herd:
            return await what(herd, pid)

    with _coordinator(stages) as (address, pid):
        return asyncio.run(go(address, pid))


def _cpu(nodes: int, stages: int) -> float:
    return _with_herd(nodes, stages, _busy)


def _lost(count: int, seed: int, nodes: int, stages: int) -> list[float]:
    return _with_herd(nodes, stages, lambda herd, pid: _lose(herd, count, random.Random(seed)))


def _commits(count: int, nodes: int) -> list[float]:
    async def commits(herd: Herd, pid: int) -> list[float]:
        return [1e3 * await herd.step(PAUSE_SECONDS) for _ in range(WARM + count)][WARM:]

    return _with_herd(nodes, nodes, commits)


def _apart(what: Callable[..., T], *arguments: float) -> T:
    """Done by a new process: gRPC's own thread goes on for every event loop that there was, and takes its time."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(what, *arguments).result()


def heartbeats_cpu(nodes: int = NODES, stages: int = STAGES) -> float:
    """Percent of one core that the coordinator of so many nodes takes."""
    return _apart(_cpu, nodes, stages)


def lost_to_plan_ms(count: int = LOST, seed: int = 0, nodes: int = NODES, stages: int = STAGES) -> list[float]:
    """Milliseconds from each of several lost nodes until every remaining node has the plan that answers it."""
    return _apart(_lost, count, seed, nodes, stages)


def commit_round_trip_ms(count: int = COMMITS, nodes: int = SMALL) -> list[float]:
    """Milliseconds from the moment when the last node sends its Ready until the last node has received the commit."""
    return _apart(_commits, count, nodes)


def measures(number: int) -> list[Measure]:
    """The group of measures of ``python -m benchmarks``: one round, on clusters of its own."""
    busy, late = heartbeats_cpu(), p99(lost_to_plan_ms(seed=number))
    commit = statistics.median(commit_round_trip_ms())
    return [
        Measure(
            name=f"coordinator, {NODES} nodes at a heartbeat a second",
            unit="% of a core",
            floor=50,
            aim=15,
            rounds=[busy],
        ),
        Measure(
            name=f"a lost node to the new plan at each of {NODES} nodes, p99",
            unit="ms",
            floor=200,
            aim=50,
            rounds=[late],
        ),
        Measure(
            name=f"the last Ready to the commit at each of {SMALL} nodes", unit="ms", floor=5, aim=2, rounds=[commit]
        ),
    ]


def p99(values: list[float]) -> float:
    """The value that one in a hundred exceeds; of fewer than a hundred the largest."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=["cpu", "lost", "commit"], default=["cpu", "lost", "commit"])
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--stages", type=int, default=STAGES)
    parser.add_argument("--lost", type=int, default=LOST)
    arguments = parser.parse_args()
    large = {"nodes": arguments.nodes, "stages": arguments.stages}
    found: dict[str, list[float]] = {what: [] for what in arguments.only}
    for number in range(arguments.rounds):
        if "cpu" in found:
            found["cpu"].append(heartbeats_cpu(**large))
            print(f"round {number}: {found['cpu'][-1]:.1f} % of a core", flush=True)
        if "lost" in found:
            times = lost_to_plan_ms(arguments.lost, number, **large)
            found["lost"] += times
            print(f"round {number}: from lost nodes to plans {', '.join(f'{x:.0f}' for x in times)} ms", flush=True)
        if "commit" in found:
            times = commit_round_trip_ms()
            found["commit"] += times
            print(f"round {number}: commits {statistics.median(times):.2f} ms, p99 {p99(times):.2f} ms", flush=True)
    for what, values in found.items():
        spread = f"{min(values):.2f} to {max(values):.2f}, p99 {p99(values):.2f}"
        print(f"{what}: median {statistics.median(values):.2f} ({spread})", flush=True)


if __name__ == "__main__":
    main()

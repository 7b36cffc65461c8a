"""A run of many nodes without their processes: a real coordinator, and simulated nodes that attend it over gRPC.

The nodes are those of ``benchmarks.simulated``, on an event loop of a thread of its own. Beside what they tell there,
each has a zone, and tells what it takes of its machine and a line of its log. So every page has something to show.
"""

import asyncio
import math
import random
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.paced import job_file
from benchmarks.simulated import Herd, SimulatedNode
from culm.local.cluster import LocalCluster
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
MICROBATCHES = 4  # of a pipeline
STEPS = 10_000  # more than a test trains
GIGABYTE = 1 << 30
ZONES = "abc"
PATIENCE = 60.0  # seconds


class Shape(NamedTuple):
    nodes: int
    stages: int
    pipelines: int


LINE = Shape(nodes=40, stages=36, pipelines=1)
GRID = Shape(nodes=200, stages=8, pipelines=24)


class Told(SimulatedNode):
    """A node that tells more of itself, each a little else than its neighbours."""

    def machine(self) -> pb.Machine:
        zone = f"us-east-1{ZONES[self._number % len(ZONES)]}"
        return pb.Machine(provider="aws", instance_type="p3.2xlarge", region="us-east-1", zone=zone, market="spot")

    @property
    def _number(self) -> int:
        return int(self.name[1:])

    def heartbeat(self) -> pb.Heartbeat:
        told = super().heartbeat()
        busy = 0.4 + 0.2 * math.sin(self._number)
        took = told.resources
        took.seconds, took.cpu_seconds, took.processors = self.beats, 8 * busy * self.beats, 8.0
        took.resident_bytes, took.memory_bytes = int((20 + self._number % 7) * GIGABYTE), 61 * GIGABYTE
        took.accelerator_busy, took.accelerator_used_bytes, took.accelerator_bytes = busy, 11 * GIGABYTE, 16 * GIGABYTE
        if self.beats == 1:
            line = told.log_lines.add(number=1, time=time.time(), level=pb.LOG_LEVEL_WARNING, logger="culm.stage")
            line.text = "the samples come slowly: 2.1 s for a microbatch, usually 0.2 s; see docs/data.md"
        return told


class Crowd(Herd):
    """The nodes, whose loss falls."""

    node_type = Told

    def __init__(self, address: str, shape: Shape) -> None:
        super().__init__(address, shape.nodes, layers_of(shape), shape.pipelines * MICROBATCHES)
        self._microbatches = shape.pipelines * MICROBATCHES

    async def steps(self, count: int) -> None:
        for _ in range(count):
            loss = 1.5 + 4.0 / (1 + self.committed)
            self._tallies = [loss, 0.001] * self._microbatches
            await self.step()


def layers_of(shape: Shape) -> int:
    return shape.stages if shape.pipelines == 1 else 12 * shape.stages


class Crew:
    """The crowd as a test uses it, from another thread."""

    def __init__(self, crowd: Crowd, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self.address = address
        self._crowd, self._loop = crowd, loop

    def train(self, steps: int) -> None:
        self._do(self._crowd.steps(steps))

    def lose(self, count: int) -> None:
        """So many nodes vanish, one after the other; the last one's plan has come."""
        draw = random.Random(1)
        for _ in range(count):
            self._do(self._crowd.lose(draw))

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE)


async def _made(address: str, shape: Shape) -> Crowd:
    """Channels belong to the loop that they are made on."""
    return Crowd(address, shape)


@contextmanager
def attended(shape: Shape, folder: Path) -> Iterator[Crew]:
    """A run of that shape that has its first plan."""
    path = job_file(
        folder,
        steps=STEPS,
        stages=shape.stages,
        microbatches=MICROBATCHES,
        forward=0.0,
        backward=0.0,
        redundancy="lazy",
    )
    path.write_text(path.read_text().replace(f"count = {shape.stages},", f"count = {layers_of(shape)},"))
    job = load_job(path, [f"pipeline.pipelines={shape.pipelines}", f"job.name=nodes-{shape.nodes}"])
    # Patience for a machine that has much else to do: no node is to be lost but those that the test takes.
    with LocalCluster(job, ROOT, 0, folder=folder / "run", patience=PATIENCE, waits_for=shape.nodes) as cluster:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="the crowd", daemon=True)
        thread.start()
        crowd = asyncio.run_coroutine_threadsafe(_made(cluster.address, shape), loop).result(PATIENCE)
        try:
            asyncio.run_coroutine_threadsafe(crowd.__aenter__(), loop).result(PATIENCE)
            yield Crew(crowd, loop, cluster.address)
        finally:
            asyncio.run_coroutine_threadsafe(crowd.__aexit__(), loop).result(PATIENCE)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE)

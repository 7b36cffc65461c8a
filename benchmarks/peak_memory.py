"""The peak of each node's memory in a run of one stage, over what it had before its first step.

``python -m benchmarks.grid memory`` calls this. The unit is the stage's gradient, as many bytes as its parameters. Just
before its first step a node has its parameters. Later it has the optimizer's state as well, which here is two units.
What is left are gradients, and what messages take on their way.

The model has 400 MB of parameters. A process takes some 45 MB beside gradients from its first step on, and what is on
its way to a node is bounded (``pipeline/rpc/channel.py``): with 50 MB of parameters that is a gradient more.

Resident memory is more than what a node has in use: the C library keeps what was freed (``compute/allocator.py``), so
the heap in use is told beside it. That still has buffers which wait for the next tensor, up to 512 MB whatever the
model's size (``pipeline/tensors/buffers.py``); "counted" is the heap in use without them. Nodes of one machine also
share memory for what is on its way.
"""

import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

from benchmarks import large_layers
from benchmarks.data_parallel import PATIENCE, ROOT, addresses, refuse_lost
from benchmarks.measure import Measure
from benchmarks.processes import Memory, memory
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb

OPTIMIZER, STATE_UNITS = "AdamW", 2.0  # two moments of each parameter
STEPS, MICROBATCHES = 30, 2  # with fewer steps the memory that is kept has not grown to its most
# 400 MB in all. From 32 MB on what arrives of a layer would lie beside the heap, and not be counted.
LAYERS, PARAMETERS = 24, 1 << 22
MODEL_BYTES = LAYERS * PARAMETERS * 4
SECONDS = 0.4  # of paced compute in a microbatch: peaks of nodes that wait for each other, as those of accelerators do
LOOK_SECONDS = 0.005  # between two looks at what is anonymous: of that the kernel keeps no peak
PROMISED = 2.5  # gradients of the stage, with one pipeline a node


class Peak(NamedTuple):
    """Of one node, in units of the stage's gradient, over the time before its first step."""

    resident: float  # as the kernel counts it: all that follows is part of it
    anonymous: float  # as it was looked at
    in_use: float  # of the heap
    counted: float  # the same, without buffers that wait for the next tensor
    shared: float  # the most at once, with other nodes of the machine


class Watch:
    """The most of each kind of memory that each process has had at a look, until ``end``."""

    def __init__(self, pids: list[int]) -> None:
        self.most = {pid: Memory() for pid in pids}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="look")
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for pid, before in self.most.items():
                self.most[pid] = before.most(memory(pid))

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def numbers(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


def peaks(pipelines: int, replicas: int, apart: bool) -> list[Peak]:
    """Of every node, the highest last; until the last commit, since giving away the final weights takes memory too."""
    heaps: dict[int, list[int]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        notes = folder / "notes"
        notes.mkdir()
        path = large_layers.job_file(
            folder,
            steps=STEPS,
            pipelines=pipelines,
            microbatches=MICROBATCHES,
            seconds=SECONDS,
            layers=LAYERS,
            parameters=PARAMETERS,
            optimizer=OPTIMIZER,
            notes=str(notes),
        )
        where = addresses(replicas, apart)

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            refuse_lost(events)
            if status.phase == "done":
                watch.end()
                heaps.update({pid: numbers(notes / f"{pid}.heap") for pid in pids})

        with LocalCluster(
            load_job(path), ROOT, replicas, folder=folder / "run", patience=PATIENCE, environments=where
        ) as cluster:
            pids = [cluster.pids()[name] for name in cluster.names]
            watch = Watch(pids)
            try:
                train(cluster, note)
            finally:
                watch.end()
        before = {pid: numbers(notes / str(pid)) for pid in pids}
    found = []
    for pid in pids:
        anonymous, resident, in_use = before[pid]
        most = watch.most[pid]
        found.append(
            Peak(
                resident=(most.peak - resident) / MODEL_BYTES,
                anonymous=(most.anonymous - anonymous) / MODEL_BYTES,
                in_use=(heaps[pid][0] - in_use) / MODEL_BYTES,
                counted=(heaps[pid][1] - in_use) / MODEL_BYTES,
                shared=most.shared / MODEL_BYTES,
            )
        )
    return sorted(found)


def peak_memory(_: int) -> list[Measure]:
    """A node with one pipeline, and one with four, on machines of their own and on one: the node that has most."""
    measures = []
    for pipelines, replicas in ((4, 4), (8, 2)):
        # 1 + log2 of a node's pipelines are accumulators, one with one pipeline.
        promised = PROMISED - 1 + (pipelines // replicas).bit_length()
        for apart in (True, False):
            found = peaks(pipelines, replicas, apart)
            shape = f"D = {pipelines}, R = {replicas}, {'machines of their own' if apart else 'one machine'}"
            for kind, of_nodes in (
                ("resident", [peak.resident - STATE_UNITS for peak in found]),
                ("heap in use", [peak.in_use - STATE_UNITS for peak in found]),
                ("counted", [peak.counted - STATE_UNITS for peak in found]),
            ):
                name = f"a node's memory less its state, {kind}, {shape}"
                aim = promised - 0.5
                measures.append(Measure(name=name, unit="gradients", floor=promised, aim=aim, rounds=[max(of_nodes)]))
            anonymous, shared = max(peak.anonymous for peak in found), max(peak.shared for peak in found)
            print(f"    {shape}: at most {anonymous:.2f} anonymous with the state, {shared:.2f} shared", flush=True)
    return measures

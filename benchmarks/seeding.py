"""What seeding costs the training: the time of a step while state is copied from the owners all the time, and without.

``python -m benchmarks.seeding`` runs the example once and takes turns between no seeding, seeding at the job's pace,
and seeding as fast as it goes.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import grpc

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.stage_server.streams.fetch import fetch_layers
from culm.terminal.outcome import Outcome

JOB = Path("examples/stdlib_gpt.toml")
MODES = ("none", "paced", "full")


class Turns:
    """Switches the mode every few steps and notes how long each turn's steps took."""

    def __init__(self, steps_a_turn: int) -> None:
        self._steps = steps_a_turn
        self._at = 0
        self._since = 0.0
        self._begun_at = 0
        self.mode = "none"
        self.seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
        self.copied = dict.fromkeys(MODES, 0)
        self.plan = pb.Plan()
        self.over = threading.Event()

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        self.plan = status.plan
        if status.step - self._begun_at < self._steps:
            return
        now = time.monotonic()
        if self._at > 0:  # the first turn warms up
            self.seconds[self.mode].append((now - self._since) / (status.step - self._begun_at))
        self._at += 1
        self._since, self._begun_at = now, status.step
        self.mode = MODES[self._at % len(MODES)]

    def copy(self) -> None:
        """Copies all owners' state again and again, as a node being seeded does."""
        while not self.over.wait(0.01):
            mode, plan = self.mode, self.plan
            if mode == "none" or not plan.stages:
                continue

            def take(layer: int, version: int, state: Value, mode: str = mode) -> None:
                self.copied[mode] += sum(t.numel() * t.element_size() for _, t in state.tensors)

            address = {m.node: m.address for m in plan.members}
            for stage in plan.stages:
                layers = tuple(range(stage.first_layer, stage.end_layer))
                try:
                    fetch_layers(address[stage.owners[0]], layers, plan.era, take, at_once=mode == "full")
                except grpc.RpcError:
                    break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--turn", type=int, default=4)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    job = load_job(JOB, [f"job.steps={arguments.steps}", "pipeline.stages=2", *arguments.set])
    turns = Turns(arguments.turn)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(job, JOB.parent, 2, folder=Path(folder) / "run") as cluster,
    ):
        copying = threading.Thread(target=turns.copy)
        copying.start()

        def watch(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
            return

        try:
            train(cluster, watch, turns)
        finally:
            turns.over.set()
            copying.join()
    base = statistics.median(turns.seconds["none"])
    for mode in MODES:
        median = statistics.median(turns.seconds[mode])
        rate = turns.copied[mode] / sum(s * arguments.turn for s in turns.seconds[mode]) / 1e6
        print(f"{mode:>5}: {median * 1e3:.0f} ms a step, {100 * (median / base - 1):+.1f} %, {rate:.0f} MB/s copied")


if __name__ == "__main__":
    main()

"""Several pipelines on several replicas: a calm step beside others', what a lost node costs, bytes and memory.

``python -m benchmarks.grid WHAT`` runs its ways in turn, round by round. Paced layers (``benchmarks.paced``,
``benchmarks.large_layers``) take their time off the CPU. WHAT is

- ``calm``: a step of two stages on four replicas, against bare processes and torch's pipelines;
- ``lost``: what a lost node costs;
- ``parallel``: a step of one stage on four replicas, against torch's DistributedDataParallel;
- ``bytes``: what nodes send in a step, against a ring all-reduce and against what the tree predicts;
- ``memory``: the peak of each node's memory, in gradients of its stage.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks import data_parallel
from benchmarks.awake import awake_cores
from benchmarks.measure import Measure, quiet_rounds
from benchmarks.paced import BACKWARD, FORWARD, job_file
from benchmarks.peak_memory import peak_memory
from benchmarks.pipelining import WARM, told
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb

ROOT = Path(__file__).parents[1]
# What a lost node costs: D pipelines of 12 equal layers on R replicas of P stages.
PIPELINES, REPLICAS, STAGES, MICROBATCHES, LAYERS = 8, 4, 2, 4, 12
KILLED, STEPS = 14, 110  # the step in which the node is lost, and how many there are
CALM_STEPS = 20
# Seconds until the shape follows. Longer than from the start to the kill, some six seconds: else eight replicas of one
# stage come first.
SETTLE = 9.0


def calm_step(pipelines: int, replicas: int, stages: int, microbatches: int, steps: int) -> float:
    """Median seconds from commit to commit of a calm run, every stage an accelerator's time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {"steps": steps, "stages": stages, "microbatches": microbatches, "redundancy": "off"}
        path = job_file(folder, forward=FORWARD, backward=BACKWARD, **settings)
        job = load_job(path, [f"pipeline.pipelines={pipelines}"])
        commits: list[float] = []

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            commits.extend(event.time for event in events if event.kind == "commit")

        with LocalCluster(job, ROOT, replicas * stages, folder=folder / "run", patience=20.0) as cluster:
            train(cluster, note)
    return statistics.median(b - a for a, b in pairwise(commits[WARM:]))


class Throughput(NamedTuple):
    """Of a run that loses a node and gets no other one: seconds of a step."""

    before: float
    disturbed: float  # the step in which the node was lost
    at_once: float  # after it, in the shape that the loss has left
    followed: float  # once the shape has followed


def lost_node(place: str, victim: str) -> Throughput:
    """One node is killed at the place, and not started again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {"steps": STEPS, "stages": STAGES, "microbatches": MICROBATCHES, "redundancy": "lazy"}
        # Layers of a sixth of the usual time: a stage has six of them.
        path = job_file(folder, forward=FORWARD / 5, backward=BACKWARD / 5, **settings)
        text = path.read_text().replace(f"count = {STAGES},", f"count = {LAYERS},")
        path.write_text(text)
        job = load_job(path, [f"pipeline.pipelines={PIPELINES}", f"pipeline.most_stages={LAYERS}"])
        commits: list[float] = []
        switched: list[float] = []

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            commits.extend(event.time for event in events if event.kind == "commit")
            switched.extend(event.time for event in events if "take the place of" in event.text)

        several = {"coordinator": {"CULM_SETTLE_SECONDS": str(SETTLE)}}
        kills = [Kill(victim, KILLED, place)]
        nodes = REPLICAS * STAGES
        with LocalCluster(
            job, ROOT, nodes, kills, respawn=False, folder=folder / "run", patience=20.0, environments=several
        ) as cluster:
            train(cluster, note)
            ((_, died),) = cluster.deaths
    lost = next(i for i, at in enumerate(commits) if at > died)
    moved = next((i for i, at in enumerate(commits) if switched and at > switched[0]), len(commits))

    def median(first: int, end: int) -> float:
        return statistics.median(b - a for a, b in pairwise(commits[first:end]))

    if moved + 4 >= len(commits):
        raise RuntimeError(f"the shape has not followed within {STEPS} steps: give it more of them")
    if moved - lost < 4:
        raise RuntimeError("the shape followed too soon after the loss, or before it: is the machine busy?")
    followed = median(moved + 2, len(commits))
    return Throughput(median(WARM, lost), commits[lost] - commits[lost - 1], median(lost, moved - 1), followed)


def calm(_: int) -> list[Measure]:
    """A step of two stages on four replicas, beside bare processes and torch, in turn."""
    shape = (4, 4, 2, 8)  # pipelines, replicas, stages, microbatches
    took = calm_step(*shape, CALM_STEPS)
    torchs = told("benchmarks.torch_grid", *shape[1:], CALM_STEPS)
    bare = told("benchmarks.bare_grid", *shape[1:], CALM_STEPS)
    name = "a grid's step, 4 replicas of 2 stages, against"
    return [
        Measure(name=f"{name} bare processes", unit="ratio", floor=1.06, aim=1.03, rounds=[took / bare]),
        Measure(name=f"{name} torch's pipelines", unit="ratio", floor=1.05, aim=0.97, rounds=[took / torchs]),
    ]


def lost(number: int) -> list[Measure]:
    """Another node at another place in each round."""
    places = ["forward", "backward", "send", "commit", "ready"]
    x = lost_node(places[number % len(places)], f"n{(3 * number + 1) % (REPLICAS * STAGES)}")
    at_once, followed, longer = x.before / x.at_once, x.before / x.followed, x.disturbed / x.before - 1
    name = "a node of 8 is lost: throughput over before"
    return [
        Measure(name=f"{name}, at once", unit="ratio", floor=0.62, aim=0.67, higher=True, rounds=[at_once]),
        Measure(name=f"{name}, in its new shape", unit="ratio", floor=0.68, aim=0.72, higher=True, rounds=[followed]),
        Measure(name="that step of a grid is longer", unit="steps", floor=0.9, aim=0.6, rounds=[longer]),
    ]


GROUPS: dict[str, Callable[[int], list[Measure]]] = {
    "calm": calm,
    "lost": lost,
    "parallel": data_parallel.in_turn,
    "bytes": data_parallel.bytes_sent,
    "memory": peak_memory,
}


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=GROUPS)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for measure in quiet_rounds(GROUPS[arguments.what], arguments.rounds):
        print(measure, flush=True)


if __name__ == "__main__":
    main()

"""What one kill -9 costs: from the kill to the next commit, less a calm step, in steps; paced layers, P = 4, M = 8.

``python -m benchmarks.failover`` kills a node at another instruction in each round: lazily and eagerly redundant, and
with gradients shipped every two microbatches, in turn.
"""

import argparse
import random
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.awake import awake_cores
from benchmarks.paced import BACKWARD, FORWARD, job_file
from benchmarks.pipelining import ROOT, WARM
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.pipeline.instruction import Duty
from culm.pipeline.job import load_job
from culm.pipeline.schedule import one_f_one_b
from culm.protos import coordinator_pb2 as pb

PIPELINE = 0  # of the job here, which has one
STAGES, MICROBATCHES, STEPS, KILLED = 4, 8, 18, 12


class Disturbance(NamedTuple):
    """In calm steps: from the kill to the next commit less a step, and by how much the disturbed step was longer."""

    lost: float
    longer: float
    calm: float  # seconds of a calm step


WAYS = {"lazy": ("lazy", 0), "eager": ("eager", 0), "k = 2": ("lazy", 2)}  # redundancy, and ship_every


def steps_lost(way: str, kill: Kill) -> Disturbance:
    """What the kill cost a run of STEPS paced steps, in one of WAYS.

    The kill's own time is the launcher's, which sees the process end.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        redundancy, every = WAYS[way]
        settings = {"steps": STEPS, "stages": STAGES, "microbatches": MICROBATCHES, "redundancy": redundancy}
        path = job_file(folder, forward=FORWARD, backward=BACKWARD, **settings)
        job = load_job(path, [f"resilience.ship_every={every}"])
        commits: list[float] = []

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            commits.extend(event.time for event in events if event.kind == "commit")

        run = folder / "run"
        with LocalCluster(job, ROOT, STAGES, [kill], respawn=False, folder=run, patience=20.0) as cluster:
            train(cluster, note)
            ((_, died),) = cluster.deaths
    calm = statistics.median(b - a for a, b in pairwise(commits[WARM:KILLED]))
    before = max(at for at in commits if at <= died)
    after = next(at for at in commits if at > died)
    return Disturbance((after - died) / calm - 1, (after - before) / calm - 1, calm)


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    found: dict[str, list[Disturbance]] = {way: [] for way in WAYS}
    for number in range(arguments.rounds):
        stage = draw.randrange(STAGES)
        at = draw.choice(one_f_one_b(Duty(PIPELINE, stage), STAGES, MICROBATCHES))
        for redundancy, times in found.items():
            times.append(steps_lost(redundancy, Kill(f"n{stage}", KILLED, str(at))))
        told = ", ".join(
            f"{redundancy} {times[-1].lost:.2f} ({times[-1].longer:.2f})" for redundancy, times in found.items()
        )
        print(f"round {number}: n{stage} at {at}: {told} steps lost (step longer)", flush=True)
    for redundancy, times in found.items():
        for what, values in zip(("lost", "step longer", "calm step in s"), zip(*times, strict=True), strict=True):
            spread = f"{min(values):.2f} to {max(values):.2f}"
            print(f"{redundancy}, {what}: {statistics.median(values):.2f} ({spread})", flush=True)


if __name__ == "__main__":
    main()

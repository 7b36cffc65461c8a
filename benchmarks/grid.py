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
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.awake import awake_cores
from benchmarks.data_parallel import bytes_sent, parallel
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
KILLED, STEPS = 14, 60  # the step in which the node is lost, and how many there are
SETTLE = 2.0  # seconds until the shape follows


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

    followed = median(moved + 2, len(commits)) if moved + 4 < len(commits) else float("nan")
    return Throughput(
        median(WARM, lost), commits[lost] - commits[lost - 1], median(lost, min(moved - 1, len(commits))), followed
    )


def calm(rounds: int, steps: int) -> None:
    pipelines, replicas, stages, microbatches = 4, 4, 2, 8
    shape = (pipelines, replicas, stages, microbatches)
    found: dict[str, list[float]] = {"culm": [], "torch": [], "bare": []}
    for number in range(rounds):
        found["culm"].append(calm_step(*shape, steps))
        found["torch"].append(told("benchmarks.torch_grid", replicas, stages, microbatches, steps))
        found["bare"].append(told("benchmarks.bare_grid", replicas, stages, microbatches, steps))
        seconds = ", ".join(f"{way} {times[-1] * 1e3:.1f} ms" for way, times in found.items())
        print(f"D=R={pipelines} P={stages} M={microbatches} round {number}: {seconds}", flush=True)
    middle = {way: statistics.median(times) for way, times in found.items()}
    for other in ("bare", "torch"):
        print(f"a calm step against {other}: {middle['culm'] / middle[other]:.3f}", flush=True)


def lost(rounds: int) -> None:
    found = []
    places = ["forward", "backward", "send", "commit", "ready"]
    for number in range(rounds):
        x = lost_node(places[number % len(places)], f"n{(3 * number + 1) % (REPLICAS * STAGES)}")
        found.append(x)
        print(
            f"round {number}: a step of {x.before * 1e3:.0f} ms; throughput at once {x.before / x.at_once:.3f}, "
            f"once the shape has followed {x.before / x.followed:.3f}; "
            f"the disturbed step is {x.disturbed / x.before - 1:.2f} steps longer",
            flush=True,
        )
    print(
        f"throughput at once {statistics.median(x.before / x.at_once for x in found):.3f}, "
        f"followed {statistics.median(x.before / x.followed for x in found):.3f}, "
        f"disturbed {statistics.median(x.disturbed / x.before - 1 for x in found):.2f} steps longer"
    )


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["calm", "lost", "parallel", "bytes", "memory"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    match arguments.what:
        case "calm":
            calm(arguments.rounds, arguments.steps)
        case "lost":
            lost(arguments.rounds)
        case "parallel":
            parallel(arguments.rounds, arguments.steps)
        case "bytes":
            bytes_sent()
        case "memory":
            peak_memory()


if __name__ == "__main__":
    main()

"""Into how many pipelines Culm best divides a published step: ``python -m benchmarks.pipelines`` prints it.

For 12 to 48 machines, each as likely as any other, the best shape's step; no machine is lost. More pipelines are
divided more evenly among the replicas, and are more blocks of the tree, whose sums are sent one by one.
"""

from collections.abc import Iterator
from statistics import mean

from benchmarks.strategies import MACHINES, WORKLOADS
from culm.coordinator import replicas
from culm.pipeline.partition import partitions
from culm.simulator.markets.grid_step import GridStep
from culm.simulator.markets.job_profile import Cluster, Profile, of_published
from culm.simulator.markets.workload import Published, fitted

FEWEST = 12
EVERY = 4  # between two numbers of machines


def shapes(profile: Profile, machines: int) -> Iterator[float]:
    """Seconds of a step under each shape of so many machines."""
    cluster, names = Cluster(), [f"n{i}" for i in range(machines)]
    for ranges in partitions((1.0,) * len(profile.layers), min(machines, profile.most_stages)):
        rows = replicas.count(machines, len(ranges), profile.pipelines)
        grid = [names[i * len(ranges) : (i + 1) * len(ranges)] for i in range(rows)]
        stages = replicas.laid_out(grid, ranges, profile.pipelines, profile.parameters)
        yield GridStep(stages, profile.grid_work(stages, cluster)).seconds + cluster.commit_seconds


def by_pipelines(work: Published) -> dict[int, float]:
    """Steps a second, the mean over the numbers of machines, for each number of pipelines that divides the step."""
    microbatches = fitted(work).microbatches
    counts = [count for count in range(2, MACHINES + 1) if microbatches % count == 0]
    machines = range(FEWEST, MACHINES + 1, EVERY)
    return {count: mean(1.0 / min(shapes(of_published(work, count), n)) for n in machines) for count in counts}


def main() -> None:
    for name, work in WORKLOADS.items():
        found = by_pipelines(work)
        best = max(found, key=lambda count: found[count])
        told = ", ".join(f"{count}: {rate / found[best]:.3f}" for count, rate in found.items())
        print(f"{name}: {best} ({told})", flush=True)


if __name__ == "__main__":
    main()

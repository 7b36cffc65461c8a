"""What values of epochs before cost in accuracy: paired seeds, plain loops, which give the bits of any servers.

``python -m benchmarks.graph_accuracy`` trains a GCN on drawn graphs (``culm.graphs.datasets.blocks``) with each
staleness, and prints the accuracy on the vertices to test on, and the mean difference with its standard error.
"""

import argparse
import math
import statistics

from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, job_of


def job(seed: int, staleness: int, vertices: int, steps: int) -> Job:
    drawn = {"vertices": vertices, "classes": 8, "degree": 6.0, "mixing": 0.5, "features": 32, "seed": seed}
    return job_of(
        {
            "job": {"name": "accuracy", "steps": steps, "seed": seed},
            "graph": {
                "data": "culm.graphs.datasets:blocks",
                "args": drawn,
                "layers": 2,
                "chunks": 8,
                "partitioner": "hash",
                "staleness": staleness,
            },
            "model": {"layers": "culm.graphs:gcn", "args": {"sizes": [32, 64, 8], "dropout": 0.3}},
            "train": {
                "loss": "culm.graphs:cross_entropy",
                "metrics": {"test": "culm.graphs:test_accuracy"},
                "optimizer": "torch.optim:AdamW",
                "optimizer_args": {"lr": 0.01, "weight_decay": 0.0005},
            },
        },
        "the benchmark's job",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--vertices", type=int, default=30_000, help="a fifth of them is tested on")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    found: dict[int, list[float]] = {each: [] for each in (0, *arguments.staleness)}
    for seed in range(arguments.seeds):
        for each, accuracies in found.items():
            result = run_plain(job(seed, each, arguments.vertices, arguments.steps))
            accuracies.append(result.metrics[-1]["test"])
        print(f"seed {seed}: {', '.join(f'staleness {each} {of[-1]:.4f}' for each, of in found.items())}", flush=True)
    for each in arguments.staleness:
        differences = [b - a for a, b in zip(found[0], found[each], strict=True)]
        error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
        mean = statistics.mean(differences)
        print(f"staleness {each}: {statistics.mean(found[each]):.4f}, {mean:+.4f} to 0's, standard error {error:.4f}")


if __name__ == "__main__":
    main()

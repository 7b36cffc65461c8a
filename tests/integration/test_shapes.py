"""Real runs over all shapes: whatever the job and the nodes, losses and weights are the plain loop's."""

import itertools
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, load_job
from culm.pipeline.places import KINDS

EXAMPLES = Path(__file__).parents[2] / "examples"
SOAK = os.environ.get("CULM_SOAK") == "1"
PATIENCE = 20.0  # on a busy machine a node may be slow to speak: streams tell of a kill, not silence
STEPS, KILLED = 8, 4
ADAMW = ('train.optimizer="torch.optim:AdamW"', "train.optimizer_args={lr=0.01}")


class Run(NamedTuple):
    """A job and where it runs."""

    pipelines: int
    stages: int
    nodes: int
    model: str  # "batchnorm" or "dropout"
    adamw: bool
    clips: bool
    killed: bool


FACTORS: tuple[tuple[Any, ...], ...] = (  # in the order of Run
    (1, 2, 3, 8),
    (1, 2, 4),
    (1, 2, 3, 5, 8, 12),
    ("batchnorm", "dropout"),
    (False, True),
    (False, True),
    (False, True),
)


def pairwise_runs() -> list[Run]:
    """So few that every two values of two factors still meet in some run."""
    every = [Run(*values) for values in itertools.product(*FACTORS)]
    pairs = set[tuple[tuple[int, Any], tuple[int, Any]]]().union(*map(_pairs_of, every))
    runs = []
    while pairs:
        runs.append(max(every, key=lambda run: len(pairs & _pairs_of(run))))
        pairs -= _pairs_of(runs[-1])
    return runs


def _pairs_of(run: Run) -> set[tuple[tuple[int, Any], tuple[int, Any]]]:
    return set(itertools.combinations(enumerate(run), 2))


RUNS = pairwise_runs()


@lru_cache(maxsize=64)
def job_of(run: Run) -> Job:
    """Its nodes are no part of it."""
    changes = [
        f"job.steps={STEPS}",
        f"pipeline.pipelines={run.pipelines}",
        f"pipeline.stages={run.stages}",
        "pipeline.microbatches=2",
        "data.microbatch=4",
        *(
            ADAMW
            if run.adamw
            else ('train.optimizer="torch.optim:SGD"', "train.optimizer_args={lr=0.05, momentum=0.9}")
        ),
        *(["train.clip_norm=0.5"] if run.clips else []),
    ]
    if run.model == "batchnorm":
        return load_job(EXAMPLES / "digits_mlp.toml", changes)
    small = ["model.args.width=32", "model.args.depth=3", "model.args.dropout=0.1"]
    return load_job(EXAMPLES / "stdlib_gpt.toml", [*changes, *small])


@lru_cache(maxsize=64)
def plain_of(run: Run) -> PlainResult:
    """The same whatever the stages and the nodes."""
    return run_plain(job_of(run))


@pytest.mark.parametrize("run", RUNS if SOAK else [*RUNS[3:5], RUNS[6]], ids=lambda run: "-".join(map(str, run)))
def test_a_job_has_one_result_on_all_shapes(run: Run, tmp_path: Path) -> None:
    job = job_of(run)
    place = KINDS[RUNS.index(run) % len(KINDS)]
    kills = [Kill("n0", KILLED, place)] if run.killed and run.nodes > 1 else []
    with LocalCluster(job, EXAMPLES, run.nodes, kills, "", True, tmp_path / "run", PATIENCE) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    plain = plain_of(run)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256

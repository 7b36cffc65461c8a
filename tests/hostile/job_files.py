"""A small job file for the jobs of this folder."""

import os
from pathlib import Path
from typing import Any

from culm.pipeline.job import Job, parse_job

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

TEXT = """
[job]
steps = {steps}
seed = 1
{job}
[model]
layers = "{layers}"
args = {{ {args} }}
[data]
dataset = "{dataset}"
microbatch = 4
{data}
[train]
loss = "{loss}"
optimizer = "{optimizer}"
optimizer_args = {{ {optimizer_args} }}
{train}
[pipeline]
stages = {stages}
microbatches = 2
{more}
"""


def job_text(
    steps: int = 6,
    stages: int = 2,
    layers: str = "tests.hostile.jobs:blocks",
    args: str = "",
    dataset: str = "tests.hostile.jobs:samples",
    loss: str = "torch.nn.functional:cross_entropy",
    optimizer: str = "torch.optim:AdamW",
    optimizer_args: str = "lr = 0.01",
    job: str = "",
    data: str = "",
    train: str = "",
    more: str = "",
) -> str:
    return TEXT.format(
        steps=steps,
        stages=stages,
        layers=layers,
        args=args,
        dataset=dataset,
        loss=loss,
        optimizer=optimizer,
        optimizer_args=optimizer_args,
        job=job,
        data=data,
        train=train,
        more=more,
    )


def make_job(**changes: Any) -> Job:
    return parse_job(job_text(**changes))

"""Real processes, one of which computes wrongly for a moment: the weights are those of a calm run (rule 25)."""

from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, parse_job
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome

PATIENCE = 30.0
MODULE = '''
import itertools
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

WHAT, _, AT = os.environ.get("TEST_WRONG", "").partition(":")
COUNT = itertools.count(1)  # of all layers' forwards in this process


class Layer(nn.Module):
    """On one node the forward of that number goes wrong, or changes a bit of its weights: once in a process."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        y = torch.tanh(self.norm(self.linear(x)))
        if not WHAT or next(COUNT) != int(AT):
            return y
        if WHAT == "state":
            self.linear.weight.detach().numpy().view("i4")[0, 0] ^= 1 << 20
        return y + 1e-3 if WHAT == "forward" else y


def layers():
    return [Layer(8) for _ in range(4)]


def dataset():
    x = torch.rand(64, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.flip(1))
'''


def job(folder: Path, **resilience: object) -> Job:
    (folder / "wrong.py").write_text(MODULE)
    return parse_job(
        f"""
[job]
name = "wrong"
steps = 12
[model]
layers = "wrong:layers"
[data]
dataset = "wrong:dataset"
microbatch = 4
[train]
loss = "torch.nn.functional:mse_loss"
optimizer = "torch.optim:AdamW"
[pipeline]
stages = 2
microbatches = 4
[checkpoint]
url = "{folder / "checkpoints"}"
every = 2
[resilience]
{chr(10).join(f"{key} = {value}" for key, value in resilience.items())}
""",
        "wrong.toml",
    )


def trained(asked: Job, folder: Path, wrong: dict[str, str]) -> tuple[Outcome, list[str], pb.AuditFigures]:
    """What came of a run in which these nodes go wrong, what was found, in words, and what the status says of it."""
    environments = {node: {"TEST_WRONG": what} for node, what in wrong.items()}
    said: list[str] = []
    figures = pb.AuditFigures()

    def watch(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        figures.CopyFrom(status.audits)
        said.extend(event.text for event in events if event.kind == "differed")

    with LocalCluster(asked, folder, 2, folder=folder / "run", patience=PATIENCE, environments=environments) as cluster:
        return train(cluster, watch), said, figures


@pytest.mark.parametrize("what", ["forward:70", "state:70"])
@pytest.mark.parametrize("node", ["n0", "n1"])
def test_what_goes_wrong_once_is_found_and_leaves_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, node: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = job(tmp_path, audit=1.0)
    outcome, said, figures = trained(asked, tmp_path, {node: what})
    assert (figures.share, figures.differed) == (1.0, 1)
    assert figures.forwards >= asked.job.steps * 2 * 4, "every forward of both stages"
    assert figures.compared >= asked.job.steps * 4, "every layer's state, by both of its holders"
    assert len(said) == 1
    assert "n0, n1 differ in the " + ("forward" if what.startswith("forward") else "state") in said[0]
    assert outcome.sha256 == run_plain(asked).sha256

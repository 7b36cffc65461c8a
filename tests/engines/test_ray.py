"""``culm up --on ray`` on a real Ray: it drains a machine and loses another; the bits stay."""

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.example import JOB, Run, calm_weights, changed, culm
from tests.engines.ray_cluster import RayCluster, ray_cluster

PACKAGE = {
    "train/job.toml": """
[job]
name = "own"
steps = 10
[model]
layers = "model:layers"
args = { width = 16 }
[data]
dataset = "points:dataset"
args = { file = "data/points.txt" }
microbatch = 8
[train]
loss = "torch.nn.functional:mse_loss"
optimizer = "torch.optim:SGD"
optimizer_args = { lr = 0.05 }
[pipeline]
stages = 2
microbatches = 2
""",
    "train/model.py": """
from torch import nn
from sizes import WIDE

def layers(width):
    return nn.Sequential(nn.Linear(WIDE, width), nn.Tanh(), nn.Linear(width, 1))
""",
    "train/sizes.py": "WIDE = 2",
    "train/points.py": """
import torch

def dataset(file):
    x = torch.tensor([[float(word) for word in line.split()] for line in open(file)])
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
""",
    "data/points.txt": "".join(f"{i / 64} {i % 8 / 8}\n" for i in range(64)),
}
pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: culm[ray]")
NODES = 4
DRAIN_SECONDS = 20


@pytest.fixture
def ray() -> Iterator[RayCluster]:
    # Ray's sockets lie there, and their paths may not be long.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name, ray_cluster(Path(name), NODES) as cluster:
        yield cluster


def test_machines_are_drained_and_lost_and_others_come(ray: RayCluster, tmp_path: Path) -> None:
    environment = {**ray.environment, "CULM_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    options = ["--with", f"address={ray.address}", "--with", "cpus=2"]
    culm("up", JOB, *changed(), "--on", "ray", "--nodes", str(NODES), *options, environment=environment)
    run = Run("stdlib-gpt", environment)
    run.until("it trains", lambda: run.status()["step"] > 5)
    first = run.names()
    assert len(first) == NODES

    ray.drain(1, DRAIN_SECONDS)
    run.until("a node hands over", lambda: len(run.events("left")) == 1)
    assert "s are left" in run.events("draining")[0]["text"]
    ray.lose_machine(1)
    ray.start_machine()
    run.until("it comes back elsewhere", lambda: run.names() == first)

    ray.lose_machine(2)
    run.until("a node is lost", lambda: len(run.events("lost")) == 1)
    ray.start_machine()
    run.until("it comes back too", lambda: run.names() == first)

    run.until("it is done", lambda: run.status()["phase"] == "done")
    assert run.weights() == calm_weights(environment)
    assert "ended" in culm("down", environment=environment)


def test_what_lies_below_working_dir_is_found_on_a_machine_that_shares_nothing(ray: RayCluster, tmp_path: Path) -> None:
    """The job's folder, a module beside it, and data by a relative path: all are gone here once they were brought."""
    environment = {**ray.environment, "CULM_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    own = tmp_path / "own"
    for name, text in PACKAGE.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    options = ["--with", f"address={ray.address}", "--with", "cpus=2", "--with", "working_dir=."]
    culm("up", "train/job.toml", "--on", "ray", *options, environment=environment, folder=own)
    own.rename(tmp_path / "gone")
    run = Run("own", environment)
    run.until("it is done", lambda: run.status()["phase"] in ("done", "failed"))
    assert run.status()["phase"] == "done", run.status()["detail"]
    assert "ended" in culm("down", environment=environment)

"""A model and a dataset that go wrong where a process's environment says so, and how a run with them is started.

``CULM_BROKEN=1``: the module is not there. ``CULM_RAISES``: a file's path; whoever removes it raises, at a forward.
``CULM_FATAL``: raises, exits or dies at every forward from step 3 on. ``CULM_STALL``: a file's path; whoever removes it
waits long for samples.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from culm.examples import digits_mlp
from culm.local.cluster import LocalCluster
from culm.local.training import Disturber, train
from culm.pipeline.job import Job, load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.outcome import Outcome


def _break(thread: str, flag: str) -> None:
    """Has what runs on a thread of this node raise once the flag is there."""
    from culm.stage_server.attendance import Attendance
    from culm.stage_server.exchange import Exchange
    from culm.stage_server.node import Node
    from culm.stage_server.worker.worker import Worker

    whose, name = {
        "orders": (Node, "order"),
        "heartbeat": (Attendance, "heartbeat"),
        "send": (Exchange, "outgoing"),
        "receive": (Worker, "deliver"),
    }[thread]
    real = getattr(whose, name)

    def fails(*words: Any, **more: Any) -> Any:
        if os.path.exists(flag):
            raise ZeroDivisionError("nobody expected this")
        return real(*words, **more)

    setattr(whose, name, fails)


if os.environ.get("CULM_BREAKS"):
    _break(os.environ["CULM_BREAKS"], os.environ["CULM_FLAG"])
if os.environ.get("CULM_BROKEN"):
    raise ImportError("this machine lacks a library")

ROOT = Path(__file__).parents[2]
WHERE = "tests.hostile.bad_nodes"
STALL = 4.0  # seconds; longer than the patience of the test with it


def _takes(variable: str) -> bool:
    """Whether this process is the one for which the file was put there."""
    try:
        os.remove(os.environ.get(variable, "/nonexistent"))
    except FileNotFoundError:
        return False
    return True


class Bad(nn.Linear):
    """A layer that does as its process's environment says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if _takes("CULM_RAISES"):
            raise ValueError("out of luck")
        flag = os.environ.get("CULM_FLAG", "/nonexistent")
        if os.path.exists(flag):
            how = os.environ.get("CULM_FATAL", "")
            if how == "raise":
                raise ValueError("out of luck")
            if how == "os._exit":
                os._exit(0)
            if how == "sys.exit":
                sys.exit(0)
            if how == "exit in C":
                ctypes.CDLL(None)._exit(0)
            if how == "die":
                os.kill(os.getpid(), signal.SIGSEGV)
        return super().forward(x)


def layers() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), Bad(32, 32), nn.ReLU(), nn.Linear(32, 10)]


def unlucky(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A metric that raises."""
    raise ValueError("out of luck")


class Stalling(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The digits, from a storage that stalls once."""

    def __init__(self) -> None:
        self._digits = digits_mlp.dataset()

    def __len__(self) -> int:
        return len(self._digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if _takes("CULM_STALL"):
            time.sleep(STALL)
        return self._digits[index]  # type: ignore[no-any-return]


def dataset() -> Stalling:
    return Stalling()


def bad_job(steps: int, stages: int = 2, *changes: str) -> Job:
    """The small example with these layers."""
    words = [f"model.layers={WHERE}:layers", "model.args={}", f"job.steps={steps}", f"pipeline.stages={stages}"]
    return load_job(ROOT / "examples" / "digits_mlp.toml", [*words, "pipeline.microbatches=2", *changes])


class Later:
    """Puts a file there once the run has reached a step."""

    def __init__(self, flag: Path, step: int) -> None:
        self._flag, self._step = flag, step
        self._done = False

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if not self._done and status.step >= self._step:
            self._done = True
            self._flag.touch()


@dataclass
class Seen:
    """What a run said."""

    events: list[pb.ListEventsResponse] = field(default_factory=list)

    def texts(self, *kinds: str) -> list[str]:
        return [e.text for e in self.events if e.kind in kinds]


def run(
    job: Job,
    nodes: int,
    folder: Path,
    environments: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    disturb: Disturber | None = None,
    seen: Seen | None = None,
    patience: float = 20.0,
) -> Outcome:
    """The job on real processes. Raises RunFailed."""
    seen = seen or Seen()
    with LocalCluster(job, ROOT, nodes, folder=folder, environments=environments, patience=patience) as cluster:
        return train(cluster, lambda status, events, outcome: seen.events.extend(events), disturb)

"""What the pages show: the state of a run as of one moment."""

from dataclasses import dataclass, field
from typing import NamedTuple

from culm.protos import coordinator_pb2 as pb
from culm.ui.history import History


class Firing(NamedTuple):
    """An alert that somebody should hear of now (``alert_rules``)."""

    name: str
    severity: str  # "page" or "warn"
    summary: str  # what is wrong, and what to do
    since: float  # unix seconds, from when on it has held


@dataclass(frozen=True, kw_only=True)
class Look:
    """The state of the run. ``problem`` says why it may be old; empty: it is not."""

    status: pb.GetStatusResponse = field(default_factory=pb.GetStatusResponse)
    cost: pb.GetCostResponse = field(default_factory=pb.GetCostResponse)
    history: History = field(default_factory=History)
    at: float = 0.0  # unix seconds
    problem: str = ""
    ended: bool = False  # a recorded log is over: nothing more comes
    reading: int = 0  # events that were read so far of a long log; 0: it is read
    firing: tuple[Firing, ...] = ()

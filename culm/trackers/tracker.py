"""What every tracker can do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from culm.trackers.scalars import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """``id``: the same for all coordinators of the run, and no other run's. ``config``: the job, flattened."""

    id: str
    name: str
    config: Mapping[str, Any]


class Tracker(Protocol):
    """Of one run. Whatever it raises, it is opened anew, and told all again."""

    def newest(self, name: str) -> int:
        """The last step of the name that it has; -1: none."""
        ...

    def write(self, scalars: Sequence[Scalar]) -> None:
        """Keeps them: they outlive this process once it returns."""
        ...

    def close(self, done: bool) -> None:
        """Nothing more comes from here. ``done``: the run is over; else another process may go on."""
        ...

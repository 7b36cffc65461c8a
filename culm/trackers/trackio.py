"""trackio: a run in a project, in this machine's own database or, as trackio's variables say, a Space."""

from collections.abc import Sequence

import trackio
from trackio.sqlite_storage import SQLiteStorage

from culm.trackers.by_step import by_step
from culm.trackers.scalars import Scalar
from culm.trackers.tracker import TrackedRun


class Trackio:
    """``where``: the project."""

    def __init__(self, where: str, run: TrackedRun) -> None:
        self._newest: dict[str, int] = {}
        for row in SQLiteStorage.get_logs(where, run.id):
            for name in row:
                self._newest[name] = max(self._newest.get(name, -1), int(row["step"]))
        self._run = trackio.init(project=where, name=run.id, resume="allow", config=dict(run.config))

    def newest(self, name: str) -> int:
        return self._newest.get(name, -1)

    def write(self, scalars: Sequence[Scalar]) -> None:
        for step, numbers in by_step(scalars):
            self._run.log(numbers, step=step)

    def close(self, done: bool) -> None:
        self._run.finish()

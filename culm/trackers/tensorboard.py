"""TensorBoard: event files in a folder, one more for each coordinator."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from culm.trackers.scalars import Scalar
from culm.trackers.tracker import TrackedRun


def events_in(folder: Path) -> Iterator[Event]:
    """All that lies there. Of a file whose process was killed, what is whole."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        yield from LegacyEventFileLoader(str(path)).Load()


class TensorBoard:
    """``where``: the folder that ``tensorboard --logdir`` is given; the run has one of its own in it."""

    def __init__(self, where: str, run: TrackedRun) -> None:
        folder = Path(where, run.id)
        self._newest: dict[str, int] = {}
        for event in events_in(folder):
            for value in event.summary.value:
                self._newest[value.tag] = max(self._newest.get(value.tag, -1), event.step)
        self._writer = EventFileWriter(str(folder))

    def newest(self, name: str) -> int:
        return self._newest.get(name, -1)

    def write(self, scalars: Sequence[Scalar]) -> None:
        for scalar in scalars:
            value = Summary.Value(tag=scalar.name, simple_value=scalar.value)
            self._writer.add_event(Event(wall_time=scalar.time, step=scalar.step, summary=Summary(value=[value])))
        self._writer.flush()

    def close(self, done: bool) -> None:
        self._writer.close()

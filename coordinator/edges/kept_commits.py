"""What the event log keeps of commits: of a run of any length, as numbers."""

import base64
import math
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from culm.pipeline.money.codec import Entry, Unreadable, of_message, to_fields, to_message
from culm.pipeline.money.kinds import Committed, words_of
from culm.protos import coordinator_pb2 as pb

Event = pb.ListEventsResponse  # as it is kept and sent

OLDEST_COLUMNS = 6  # of commits, in a summary that does not say how many
COMMITS_KEPT = 1 << 16  # 4 MiB, and more points of a loss curve than a screen shows


class Commits:
    """The commits on record as numbers, ascending. Of too many every second of the older half is left out: the loss
    curve keeps its shape.
    """

    COLUMNS = 8  # as ``_columns`` has them

    def __init__(self) -> None:
        # Invariant: all columns are of one length, and ``sequences`` ascends: ``since`` searches in it.
        self.sequences = array("Q")
        self._generations = array("Q")
        self.steps = array("Q")
        self._times = array("d")
        self._losses = array("d")
        self._scales = array("d")
        self._norms = array("d")
        self._rates = array("d")  # learning rates; NaN: none

    def _columns(self) -> "tuple[array[Any], ...]":
        return (
            *(self.sequences, self._generations, self.steps, self._times, self._losses, self._scales),
            self._norms,
            self._rates,
        )

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, event: Event) -> bool:
        """False if it is no commit as this version writes them, and has to be kept as it is."""
        try:
            entry = of_message(event)
        except Unreadable:
            return False
        said = entry.event
        if not isinstance(said, Committed) or said.step < 0 or to_fields(said) != dict(event.fields):
            return False
        rate = math.nan if said.learning_rate is None else said.learning_rate
        row = (entry.sequence, entry.generation, said.step, entry.time, said.loss, said.scale, said.norm, rate)
        for column, value in zip(self._columns(), row, strict=True):
            column.append(value)
        # The first commit stays, and the newer half as it is.
        if len(self) > COMMITS_KEPT:
            for column in self._columns():
                del column[1 : COMMITS_KEPT // 2 : 2]
        return True

    def since(self, sequence: int) -> Iterator[Event]:
        """Those here now, from this number on. ``add`` may leave some out before a slow reader gets to them."""
        newest = self.sequences[-1] if self.sequences else 0
        # Places shift when ``add`` leaves commits out, so each next one is searched by its number.
        while (i := bisect_left(self.sequences, sequence)) < len(self) and self.sequences[i] <= newest:
            sequence = self.sequences[i] + 1
            yield self._event(i)

    def _event(self, i: int) -> Event:
        committed = Committed(
            step=self.steps[i],
            loss=self._losses[i],
            scale=self._scales[i],
            norm=self._norms[i],
            learning_rate=None if math.isnan(self._rates[i]) else self._rates[i],
        )
        entry = Entry(
            sequence=self.sequences[i],
            time=self._times[i],
            kind=committed.kind,
            text=words_of(committed),
            step=committed.step + 1,
            generation=self._generations[i],
            event=committed,
        )
        return to_message(entry)

    def to_text(self) -> str:
        columns = b"".join(column.tobytes() for column in self._columns())
        return base64.b64encode(zlib.compress(columns, 1)).decode()

    def read(self, text: str, columns: int) -> None:
        """Takes what ``to_text`` gave in place of what is here. ``columns``: of the version that wrote it."""
        data = zlib.decompress(base64.b64decode(text))
        size = len(data) // columns
        for i, column in enumerate(self._columns()):
            del column[:]
            if i < columns:
                column.frombytes(data[i * size : (i + 1) * size])
            else:  # which that version did not have
                column.extend([math.nan if column is self._rates else 0] * (size // column.itemsize))

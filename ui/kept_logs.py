"""Keeps the log of a run that has ended as a file, among those that the page "Runs" compares."""

import gzip
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from culm.pipeline.money.codec import to_line
from culm.pipeline.text import as_name, cleaned
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.ui")


def file_name(job: str, begun: float) -> str:
    """Named after the job and the moment of its first plan: a run has one file, whoever keeps it, and when."""
    return f"{as_name(job)}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(begun))}.jsonl.gz"


@dataclass(eq=False)
class KeptLogs:
    folder: Path
    # Files that are written, or that could not be, and the run's end then.
    _begun: dict[str, int] = field(default_factory=dict)

    def keep(self, job: str, begun: float, end: int, events: Callable[[], Iterable[pb.ListEventsResponse]]) -> None:
        """Writes the log beside the pages, once: a long one takes seconds. A file of this end, or a later one, stays.

        ``end`` in unix seconds. A run that was done may go back and end again: so each file's time is the run's end.
        """
        name = file_name(job, begun)
        path = self.folder / name
        if self._begun.get(name, -1) >= end or (path.exists() and path.stat().st_mtime >= end):
            return
        self._begun[name] = end
        threading.Thread(target=self._write, args=(name, end, events), name="keep a log", daemon=True).start()

    def _write(self, name: str, end: int, events: Callable[[], Iterable[pb.ListEventsResponse]]) -> None:
        beside = self.folder / f".{name}.{os.getpid()}.{end}"
        try:
            with gzip.open(beside, "wt", encoding="utf-8") as file:
                file.writelines(to_line(cleaned(event)) + "\n" for event in events())
            os.utime(beside, (end, end))
            beside.replace(self.folder / name)
        except Exception:
            beside.unlink(missing_ok=True)
            log.exception("could not keep the log of the run as %s; culm events --json writes it too", name)

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
    _begun: set[str] = field(default_factory=set)  # files that are written, or that could not be

    def keep(self, job: str, begun: float, events: Callable[[], Iterable[pb.ListEventsResponse]]) -> None:
        """Writes the log beside the pages, once: a long one takes seconds. A file that is there already stays."""
        name = file_name(job, begun)
        if name in self._begun or (self.folder / name).exists():
            return
        self._begun.add(name)
        threading.Thread(target=self._write, args=(name, events), name="keep a log", daemon=True).start()

    def _write(self, name: str, events: Callable[[], Iterable[pb.ListEventsResponse]]) -> None:
        beside = self.folder / f".{name}.{os.getpid()}"
        try:
            with gzip.open(beside, "wt", encoding="utf-8") as file:
                file.writelines(to_line(cleaned(event)) + "\n" for event in events())
            beside.replace(self.folder / name)
        except Exception:
            beside.unlink(missing_ok=True)
            log.exception("could not keep the log of the run as %s; culm events --json writes it too", name)

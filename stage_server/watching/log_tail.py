"""The newest lines of this process's log, kept until the coordinator has been told them."""

# A line is what the log itself prints: one line, without control characters and secrets. It goes up with a heartbeat.
# Nobody says that it has arrived. So on a new stream the newest lines go up again, with their numbers, by which the
# coordinator takes each once; and it sees by a gap in the numbers how many were dropped.

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from culm.pipeline.text import plain, shortened, without_secrets
from culm.protos import coordinator_pb2 as pb

KEPT = 100  # lines that wait for a heartbeat; of more the oldest are dropped
AT_ONCE = 20  # lines in one heartbeat, and told again on a new stream
LONGEST = 400  # characters
LONGEST_TRACE = 30  # lines of an exception: its last ones

_LEVELS = (
    (logging.CRITICAL, pb.LOG_LEVEL_CRITICAL),
    (logging.ERROR, pb.LOG_LEVEL_ERROR),
    (logging.WARNING, pb.LOG_LEVEL_WARNING),
)


class LogTail(logging.Handler):
    """A handler beside the one that prints. Any thread may log and ask; ``emit`` neither waits nor logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        # Not the handler's own, which is held while a record is formatted. Reentrant, as that one is.
        self._turn = threading.RLock()
        self._lines: deque[pb.LogLine] = deque(maxlen=KEPT)
        self._numbered = 0  # the newest line's number
        self._told = 0  # the number of the last line that was given out

    def emit(self, record: logging.LogRecord) -> None:
        try:
            texts = list(_texts(record))
        except Exception:  # arguments that do not fit the format: what prints the record tells that
            return
        level = next((told for least, told in _LEVELS if record.levelno >= least), pb.LOG_LEVEL_INFO)
        with self._turn:
            for text in texts:
                self._numbered += 1
                line = pb.LogLine(number=self._numbered, time=record.created, level=level)
                line.logger, line.text = shortened(plain(record.name), 80), shortened(text, LONGEST)
                self._lines.append(line)

    def news(self) -> list[pb.LogLine]:
        """The next lines, oldest first, as many as go with one heartbeat."""
        with self._turn:
            found = [line for line in self._lines if line.number > self._told][:AT_ONCE]
            if found:
                self._told = found[-1].number
            return found

    def tell_again(self) -> None:
        """``news`` gives the newest lines once more."""
        with self._turn:
            self._told = min(self._told, max(0, self._numbered - AT_ONCE))


def _texts(record: logging.LogRecord) -> Iterator[str]:
    yield without_secrets(plain(record.getMessage()))
    if record.exc_info:
        yield from _trace(logging.Formatter().formatException(record.exc_info).splitlines())


def _trace(lines: Iterable[str]) -> Iterator[str]:
    for line in deque(lines, maxlen=LONGEST_TRACE):
        yield without_secrets(plain(line))

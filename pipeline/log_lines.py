"""How a service's log looks: plain lines for people, or JSON lines that say which process of which run speaks."""

# A log line of another process's words stays one line, and holds no secret: both forms see to that.
#
# Who speaks (the run, the node) and where it stands (step, generation) are looked up for each line, on the thread that
# logs, without a lock. So nothing is kept up to date for it, and a process that logs nothing pays nothing. A step may
# be one behind by the time the line is read.

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import datetime

from culm.pipeline.text import plain, without_secrets

Facts = Mapping[str, str | int]


class PlainLines(logging.Formatter):
    """``12:00:00.123 culm.stage what happened``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return without_secrets(plain(super().formatMessage(record)))

    def formatException(self, ei: "logging._SysExcInfoType") -> str:  # noqa: N802
        return without_secrets(super().formatException(ei))


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message; what is known of run, node, step and the like; exception.

    ``who``: of the process, from its start. ``look``: where it stands, since ``speak_as``.
    """

    def __init__(self, who: Facts) -> None:
        super().__init__()
        self._who = {name: value for name, value in who.items() if value != ""}
        self.look: Callable[[], Facts] = dict

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(plain(record.getMessage())),
            **self._who,
            **{name: value for name, value in self.look().items() if value != ""},
        }
        if record.exc_info:
            line["exception"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(line)


FORMATS = ("text", "json")


def install(form: str, level: str, who: Facts) -> None:
    """From now on this process logs to stderr, in one of ``FORMATS``. ``who``: facts of the process, such as its run.

    In JSON, warnings of Python and the exception that ends the process are lines of the log too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(who) if form == "json" else PlainLines())
    logging.basicConfig(level=level, handlers=[handler])
    if form == "json":
        logging.captureWarnings(True)
        sys.excepthook = lambda kind, error, trace: logging.getLogger("culm").critical(
            "the process ends: %s", kind.__name__, exc_info=(kind, error, trace)
        )


def speak_as(look: Callable[[], Facts]) -> None:
    """Lines of JSON say what ``look`` gives from now on. Any thread may call it: it must neither wait nor raise."""
    if (lines := _json_lines()) is not None:
        lines.look = look


def last_line(command: str, text: str) -> None:
    """Why a service ends, on stderr: in the form of its log."""
    if _json_lines() is not None:
        logging.getLogger("culm").error("%s", text)
    else:
        print(f"culm {command}: {text}", file=sys.stderr, flush=True)


def _json_lines() -> JsonLines | None:
    """Of this process's log; None where it is plain, or was not begun."""
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return next((each for each in formatters if isinstance(each, JsonLines)), None)

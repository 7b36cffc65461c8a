"""What the services log, and how: set by variables, since each command of a service would need the same flags."""

import os
import sys

from culm.pipeline.errors import JobError
from culm.pipeline.log_lines import FORMATS, Facts, install
from culm.pipeline.text import closest, plain, without_secrets

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def set_up(who: Facts) -> None:
    """Begins the log of a service. ``who``: what is known of it from the start. Raises JobError for a bad variable."""
    level = os.environ.get("CULM_LOG", "").upper() or "INFO"
    if level not in LEVELS:
        raise JobError(f"{plain(level)!r} is not a log level", "CULM_LOG", closest(level, LEVELS))
    form = os.environ.get("CULM_LOG_FORMAT", "") or FORMATS[0]
    if form not in FORMATS:
        raise JobError(f"{plain(form)!r} is not a format of logs", "CULM_LOG_FORMAT", closest(form, FORMATS))
    install(form, level, who)


def hide_secrets() -> None:
    """Takes secrets out of the command line: ps shows it to every user of this machine."""
    shown = [without_secrets(word) for word in sys.argv]
    if shown != sys.argv:
        import setproctitle

        setproctitle.setproctitle(" ".join(shown))

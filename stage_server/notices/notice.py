"""What a notice says, and what can give one."""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning that this machine may be gone soon. Two notices with the same ``why`` are the same notice."""

    why: str  # in words: who says it, and what will happen
    deadline: float | None  # unix seconds after which the machine may be gone; None: the source does not say
    certain: bool  # False: a hint, the machine may well stay


class NoticeSource(Protocol):
    """Tells each of its notices once."""

    def wait(self, stop: threading.Event) -> Notice | None:
        """The next notice. None when ``stop`` is set, or when nothing will ever come from here. Never raises for a
        metadata service that is absent, refuses or talks nonsense: that is no notice."""
        ...


def unix_seconds(text: str) -> float | None:
    """Reads an ISO 8601 time as unix seconds, in UTC if it names no zone; None if it is no such time."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()

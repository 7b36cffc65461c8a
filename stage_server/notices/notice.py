"""What a notice says, what can give one, and whether it says something new."""

import threading
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning that this machine may be gone soon. Two with the same ``why`` are one, maybe with a new deadline."""

    why: str  # in words: who says it, and what will happen
    deadline: float | None  # unix seconds after which the machine may be gone; None: the source does not say
    certain: bool  # False: a hint, the machine may well stay


# A deadline that moves by less is the same: sources may tell it by the seconds that are left, each time a bit late.
MOVED_SECONDS = 2.0


def is_news(notice: Notice, told: MutableMapping[str, float | None]) -> bool:
    """Whether it has not been told yet, or its deadline has moved since. ``told``: deadlines by reason; kept here."""
    if notice.why in told:
        before, now = told[notice.why], notice.deadline
        if before is None or now is None:
            if before is now:
                return False
        elif abs(now - before) < MOVED_SECONDS:
            return False
    told[notice.why] = notice.deadline
    return True


class NoticeSource(Protocol):
    """Tells each of its notices once, and again whenever its deadline has moved."""

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

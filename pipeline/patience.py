"""How long silence is waited out before a node counts as lost: one number, from which every detector has its own.

A node that is killed is seen at once, by its broken streams, whatever the patience. Patience is for what breaks
nothing: a node that is frozen or cut off, a link that does not mend, an instruction that does not end. A machine that
is merely busy may fall silent for seconds; so the usual patience is long, and every detector keeps its ratio to it.
"""

import math
import os
from dataclasses import dataclass

from culm.pipeline.errors import JobError

USUAL = 10.0  # seconds
VARIABLE = "CULM_PATIENCE"
SHORTEST = 0.5  # seconds; a heartbeat comes every 125 ms then
SHORTEST_CONNECT = 1.0  # seconds that one attempt to connect gets: TCP and TLS take several round trips


@dataclass(frozen=True, slots=True)
class Patience:
    """``seconds`` is what a heartbeat may be late. All times in seconds."""

    seconds: float = USUAL

    @property
    def heartbeat(self) -> float:
        """Between two heartbeats of a node."""
        return min(0.5, self.seconds / 4)  # so that four fit into the patience

    @property
    def joining(self) -> float:
        """For a heartbeat of a node that still imports and builds: it holds nothing, and nobody waits for it."""
        return 10 * self.seconds

    @property
    def loading(self) -> float:
        """For one microbatch's samples: storage may stall longer than any computation does."""
        return 30 * self.seconds

    @property
    def link(self) -> float:
        """For a link between two nodes that both attend to work again."""
        return 2.5 * self.seconds

    @property
    def lease(self) -> float:
        """For a coordinator to renew its lease before another one may lead."""
        return 1.5 * self.seconds

    @property
    def ping(self) -> float:
        """Until a silent connection is pinged, and again until the ping's answer: both together are the patience."""
        return self.seconds / 2

    @property
    def connect(self) -> float:
        """For one attempt to connect."""
        return max(SHORTEST_CONNECT, self.seconds / 5)


DEFAULT = Patience()


def from_environment() -> float | None:
    """The seconds that ``CULM_PATIENCE`` says, or None. Raises JobError for a text that is not such a time."""
    text = os.environ.get(VARIABLE, "")
    return checked(text, VARIABLE) if text else None


def checked(text: str | float, where: str) -> float:
    """The patience in seconds. Raises JobError for a text that is not such a time."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not SHORTEST <= seconds < math.inf:
        raise JobError(
            f"{text!r} is not a patience", where, f"give {SHORTEST:g} seconds or more; the default is {USUAL:g}"
        )
    return seconds

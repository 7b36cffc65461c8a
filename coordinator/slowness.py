"""When a node counts as slower, or faster, than it did: only what lasts is believed. Pure."""

# A busy machine makes a node slow for seconds; a cut that followed every such swing would cost more than it saves.

from dataclasses import dataclass, replace

# A change smaller than this part of what is known is none: instructions of one node vary by themselves.
NOTICEABLE = 0.25


@dataclass(frozen=True, slots=True)
class Pace:
    """How many times slower a node has become since it started: what counts, and what it has been saying since when.

    Invariant: ``since`` is None unless every value told since then was noticeably on the same side of ``known``.
    """

    known: float = 1.0
    since: float | None = None
    slower: bool = False  # on which side


def told(pace: Pace, slowness: float, now: float, lasts: float) -> tuple[Pace, bool]:
    """The pace after a node has told its slowness, and whether what counts has changed.

    ``lasts``: seconds for which the node must go on telling a change before it counts.
    """
    if abs(slowness - pace.known) < NOTICEABLE * pace.known:
        return replace(pace, since=None), False
    slower = slowness > pace.known
    if pace.since is None or slower != pace.slower:
        return replace(pace, since=now, slower=slower), False
    if now - pace.since < lasts:
        return pace, False
    return Pace(slowness), True

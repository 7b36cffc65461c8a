"""Where an iterable dataset goes on after a step: found by whoever read it, told with commits, kept in checkpoints."""

# An iterable dataset has samples in one order, and is read forward. What it gives is a fact, as a map-style dataset's
# samples are: whoever reads it from its beginning comes to the same ones. A bookmark only spares the way. So nothing
# waits for one: a node that has none, or an older one, reads on from there.
#
#     the first stage's owners    read the step's samples      Read: bookmark of t + 1, a hash of the step's samples
#     coordinator                 compares the hashes          commit t, with the newest bookmark
#     every holder                keeps it; whoever takes a duty over that takes samples reads on from there
#     who saves layer 0           writes it beside the layer
#
# A dataset may claim a state and go on from it with other samples, such as those of a buffer that it fills anew. So a
# bookmark has the state from before the step that it follows. Whoever opens the dataset reads that step once more, and
# compares the hash: what it reads then are the run's samples, or the run ends with one line.
#
# It stays true over eras, as it is about the dataset and not about weights.

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from culm.pipeline.origin import Origin

MOST_BYTES = 1 << 16  # of a state: it goes to every node with every commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """Where to come to the samples of step ``version``."""

    version: int  # at least 1: the beginning needs none
    of: str  # a hash of what makes the samples of a step: a job that was edited, or has other data, cannot use it
    digest: str  # of all samples of the step before, in hex
    state: bytes  # of the dataset, which alone can read it, where the step before began; empty: at its beginning


class Known(NamedTuple):
    """What a node knows of bookmarks, at one moment."""

    newest: Bookmark | None = None  # that a commit has told
    origin: Origin = Origin()  # of the era: there may be one beside its checkpoint


def bookmark_for(step: int, known: Known, read: Callable[[str], Bookmark | None]) -> Bookmark | None:
    """The newest one by which this step can be read; None: samples are to be read from the first one on.

    That is one of the step itself or before, or the next step's, whose state is from before this step: a checkpoint of
    a run that has ended early has that one. ``read``: the one in a checkpoint's folder. Raises what that raises.
    """
    if known.newest is not None and known.newest.version <= step + 1:
        return known.newest
    found = read(known.origin.folder) if known.origin.folder else None
    return found if found is not None and found.version <= step + 1 else None

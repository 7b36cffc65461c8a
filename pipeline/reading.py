"""Reads an iterable dataset forward, and gives any microbatch of a step whose place it can come to. Knows no torch."""

# Microbatches are numbered as the plain loop takes them: step by step, in it pipeline by pipeline. Those of the step
# that was asked for last stay here, since a node may be asked in another order, or once more, as an heir is. For one
# further back the dataset is opened again, by the newest bookmark before it: a step is read that is known, and then on.

import hashlib
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from culm.pipeline.bookmark import Bookmark
from culm.pipeline.errors import JobError

T = TypeVar("T")

EXACT = (
    "let load_state_dict bring it to the very next sample: draw no sample from a buffer that the state does not hold "
    "(shuffle files or shards instead), draw what is random from the generators that Culm seeds, and leave the "
    "dataset's files as they are while a run reads them"
)


class Opened(Protocol[T]):
    """A dataset that was opened, at a place of its own."""

    def read(self, step: int, place: int) -> T:
        """The samples of the next microbatch, which is the one at this place of the step."""
        ...

    def digest(self, samples: T) -> bytes: ...

    def state(self) -> bytes:
        """For opening it once more at where it is."""
        ...


class Reader(Generic[T]):
    """Of one process."""

    def __init__(
        self,
        reopen: Callable[[bytes], Opened[T]],
        microbatches: int,
        known: Callable[[int], Bookmark | None],
        of: str = "",
    ) -> None:
        """``reopen``: opens the dataset at a bookmark's state, or at its beginning for ``b""``; ``microbatches``: of a
        step, of all pipelines; ``known``: the newest bookmark by which a step can be read; ``of``: goes into bookmarks.
        """
        self._of = of
        self._reopen = reopen
        self._microbatches = microbatches
        self._known = known
        self._opened: Opened[T] | None = None
        self._opened_by: Bookmark | None = None
        self._next = 0  # the number of the microbatch that is read next
        self._kept: dict[int, tuple[T, bytes]] = {}  # with the digest of what was read
        self._began = b""  # the dataset's state where the step that is read began
        self._digest = hashlib.blake2b(digest_size=8)  # of what was read of that step
        self._found: Bookmark | None = None

    def microbatch(self, step: int, place: int) -> T:
        """The samples of the microbatch at this place of the step.

        Raises what the dataset raises, and JobError where it has not gone on from a bookmark with the run's samples.
        """
        first, wanted = step * self._microbatches, step * self._microbatches + place
        self._kept = {number: samples for number, samples in self._kept.items() if number >= first}
        if self._opened is None or (wanted < self._next and not self._has_kept(wanted, self._opened)):
            self._open(step)
        while wanted not in self._kept:
            self._read(first)
        return self._kept[wanted][0]

    def take_bookmark(self) -> Bookmark | None:
        """The one that reading has come to since the last call."""
        found, self._found = self._found, None
        return found

    def _has_kept(self, number: int, opened: Opened[T]) -> bool:
        """Whether its samples are here as they were read. Whoever had them may have written into them since, and so may
        a dataset that fills one buffer again and again.
        """
        if number not in self._kept:
            return False
        samples, digest = self._kept[number]
        return opened.digest(samples) == digest

    def _open(self, step: int) -> None:
        bookmark = self._known(step)
        assert bookmark is None or bookmark.version <= step + 1, f"step {step} is before what {bookmark} leads to"
        self._kept.clear()
        self._began = bookmark.state if bookmark is not None else b""
        self._opened, self._opened_by = self._reopen(self._began), bookmark
        self._next = (bookmark.version - 1) * self._microbatches if bookmark is not None else 0
        self._digest = hashlib.blake2b(digest_size=8)

    def _read(self, first: int) -> None:
        assert self._opened is not None
        step, place = divmod(self._next, self._microbatches)
        try:
            samples = self._opened.read(step, place)
        except BaseException:
            self._opened = None  # nobody knows where it is now; asked again, it is opened again
            raise
        digest = self._opened.digest(samples)
        self._digest.update(digest)
        if self._next >= first:
            self._kept[self._next] = samples, digest
        self._next += 1
        if place == self._microbatches - 1:
            self._end_step(step, self._opened)

    def _end_step(self, step: int, opened: Opened[T]) -> None:
        found = Bookmark(version=step + 1, of=self._of, digest=self._digest.hexdigest(), state=self._began)
        by, self._opened_by = self._opened_by, None
        if by is not None and by.digest != found.digest:
            self._opened = None
            what = f"the dataset has gone on from its state with other samples of step {step} than the run has had"
            raise JobError(what, "data.dataset", EXACT)
        self._found, self._began = found, opened.state()
        self._digest = hashlib.blake2b(digest_size=8)

"""An iterable dataset that counts: what it gives is which microbatch it should be, so a wrong bookmark shows."""

from collections.abc import Callable

from culm.pipeline.bookmark import Bookmark, Known, bookmark_for
from culm.pipeline.reading import Reader


class Counting:
    """Opened where a state says: ``culm.pipeline.reading.Opened``."""

    def __init__(self, state: bytes) -> None:
        self._at = int(state or b"0")

    def read(self, step: int, place: int) -> int:
        self._at += 1
        return self._at - 1

    def digest(self, samples: int) -> bytes:
        return str(samples).encode()

    def state(self) -> bytes:
        return str(self._at).encode()


class SimulatedReading:
    """One node's."""

    def __init__(
        self, microbatches: int, pipelines: int, known: Callable[[], Known], read: Callable[[str], Bookmark | None]
    ) -> None:
        """``microbatches``: of a pipeline in a step; ``read``: the bookmark in a checkpoint's folder."""
        self._microbatches, self._pipelines = microbatches, pipelines
        self._reader = Reader(Counting, microbatches * pipelines, lambda step: bookmark_for(step, known(), read))

    def take(self, step: int, pipeline: int, microbatch: int) -> None:
        """Raises AssertionError where the dataset gives another microbatch."""
        place = pipeline * self._microbatches + microbatch
        found, wanted = self._reader.microbatch(step, place), step * self._microbatches * self._pipelines + place
        assert found == wanted, f"step {step} read microbatch {found} of its dataset in place of {wanted}"

    def take_bookmark(self) -> Bookmark | None:
        return self._reader.take_bookmark()

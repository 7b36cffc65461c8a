"""Which layers the node's compute is to hold, and which duties it is to be ready for; the next such order, if any."""

from collections.abc import Collection, Iterable

from culm.pipeline.instruction import Duty
from culm.stage_server.worker.work import Arrange

Ranges = tuple[tuple[Duty, range], ...]  # the layers of each duty that the node runs, or runs ahead


class Arranging:
    """Orders that were not carried out yet become one."""

    def __init__(self) -> None:
        self.due: Arrange | None = None
        self.layers: tuple[int, ...] = ()  # of the last order
        self._ranges: Ranges = ()

    def order(
        self,
        layers: Iterable[int],
        step: int,
        anew: bool = False,
        ranges: Ranges | None = None,
        fresh: Collection[Duty] = (),
        initial: Collection[int] = (),
    ) -> None:
        """From ``step`` on exactly these layers are held. ``ranges``: None where the duties stay as they are."""
        self.layers = tuple(layers)
        self._ranges = self._ranges if ranges is None else ranges
        if self.due is not None:
            known = {duty for duty, _ in self._ranges}
            anew, fresh = anew or self.due.anew, known.intersection((*fresh, *self.due.fresh))
            initial = {*initial, *self.due.initial}
        built = tuple(sorted({*initial}.intersection(self.layers)))
        self.due = Arrange(self.layers, self._ranges, step, anew, tuple(sorted(fresh)), built)

    def take(self) -> Arrange | None:
        due, self.due = self.due, None
        return due

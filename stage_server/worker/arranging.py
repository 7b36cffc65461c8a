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
        self._stages = 0  # of the plan

    def order(
        self,
        layers: Iterable[int],
        step: int,
        anew: bool = False,
        ranges: Ranges | None = None,
        stages: int | None = None,
        fresh: Collection[Duty] = (),
        initial: Collection[int] = (),
    ) -> None:
        """From ``step`` on exactly these layers are held. ``ranges``, ``stages``: None where the duties stay."""
        self.layers = tuple(layers)
        self._ranges = self._ranges if ranges is None else ranges
        self._stages = self._stages if stages is None else stages
        if self.due is not None:
            known = {duty for duty, _ in self._ranges}
            anew, fresh = anew or self.due.anew, known.intersection((*fresh, *self.due.fresh))
            initial = {*initial, *self.due.initial}
        built = tuple(sorted({*initial}.intersection(self.layers)))
        self.due = Arrange(
            layers=self.layers,
            duties=self._ranges,
            stages=self._stages,
            step=step,
            anew=anew,
            fresh=tuple(sorted(fresh)),
            initial=built,
        )

    def take(self) -> Arrange | None:
        due, self.due = self.due, None
        return due

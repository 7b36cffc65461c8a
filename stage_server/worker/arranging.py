"""Which layers the node's compute is to hold, and which duties it is to be ready for; the next such order, if any."""

from collections.abc import Collection, Iterable, Sequence

from culm.pipeline.instruction import Duty
from culm.pipeline.plan import Plan
from culm.pipeline.ties import Addend
from culm.stage_server.worker.work import Arrange

# The worker's holdings and duties change with an event; compute follows later, with its next piece of work. Several
# plans may come in between. Then the orders become one:
#
#     layers, duties, stages, step    those of the latest
#     anew                            if any of them began an era: the state of the era before is still in compute
#     fresh                           of all of them, as far as the duty is still arranged for
#     initial                         of all of them, as far as the layer is still held
#
# Why they are added up: a duty goes to another node with one plan and comes back with the next, and a third plan
# follows, all during one piece of work. The third order alone does not name the duty as fresh. Compute would go on with
# half a step's gradients, which the worker counts no more.
#
# While an order is ``due`` nothing else is given to compute, and no layer is lent to another node.

Ranges = tuple[tuple[Duty, range], ...]  # the layers of each duty that the node runs, or runs ahead


class Arranging:
    """Orders that were not carried out yet become one."""

    def __init__(self) -> None:
        self.due: Arrange | None = None  # the order that compute has not been given yet
        self.layers: tuple[int, ...] = ()  # of the last order
        self._ranges: Ranges = ()
        self._stages = 0  # of the plan
        self._addends: Sequence[Sequence[Addend]] = ()  # of each layer of the model; the same in every plan of a run

    def order(
        self,
        layers: Iterable[int],
        step: int,
        plan: Plan | None = None,
        anew: bool = False,
        ranges: Ranges | None = None,
        fresh: Collection[Duty] = (),
        initial: Collection[int] = (),
    ) -> None:
        """From ``step`` on exactly these layers are held. ``ranges``, ``plan``: None where the duties stay."""
        self.layers = tuple(layers)
        self._ranges = self._ranges if ranges is None else ranges
        if plan is not None:
            self._stages, self._addends = len(plan.stages), plan.addends
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
            addends=tuple(tuple(self._addends[layer]) for layer in self.layers),
        )

    def restart(self, duty: Duty, step: int) -> None:
        """The duty begins the step again, and all else stays as it is."""
        self.order(self.layers, step, fresh=[duty])

    def take(self) -> Arrange | None:
        due, self.due = self.due, None
        return due

"""Lends layers' state to nodes being seeded, between two pieces of the compute thread's work."""

# A loan begins while the compute thread does nothing, and lasts on while it computes:
#
#     fetching thread                                compute thread
#      │ waiting += 1                                 │ computing: an instruction
#      │ waits for the lock's condition               │ done; somebody waits, so it takes no work of its own
#      │◀─────────────────────── woken ───────────────┤ waits for the lock's condition
#      │ the layer's version, and a Loan on it        │
#      │ waiting -= 1 ───────── woken ───────────────▶│ goes on
#      │ reads the loan, piece by piece               │ computes; before a commit changes the layer it has the loan
#      │                                              │ copy what was not read yet (``HeldLayer.apply``)
#
# In between parameters and buffers agree with the version that the worker names. Within an instruction they may not:
# ``Apply`` changes layer after layer, and the worker counts the step when all are done.

from collections.abc import Iterator

from culm.pipeline.tensors.values import Value
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.loan import Loan
from culm.stage_server.streams.incoming import NotHeld
from culm.stage_server.turn import Turn
from culm.stage_server.worker.worker import Worker


class Lending:
    """Called by each fetching peer's thread. The node's lock guards all of it."""

    def __init__(self, worker: Worker[Value], compute: Compute, changed: Turn) -> None:
        self._worker = worker
        self._compute = compute
        self._changed = changed
        self.waiting = 0  # loans that wait for a moment between two pieces of work
        self.computing = False  # whether the compute thread is within a piece of work; it says so itself

    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        """Each layer with its version. Raises NotHeld for what is not held."""
        for layer in layers:
            present = self._worker.era
            if era != present:  # looked at first, so that computing does not pause for what is not here
                raise NotHeld(f"{self._worker.node} is in era {present}, not in era {era}")
            with self._changed:  # what is raised in here ends the node, so NotHeld is raised after it
                self.waiting += 1
                try:
                    # A plan that is not arranged yet: the worker names layers that compute has not built.
                    self._changed.wait_for(
                        lambda: self._changed.stopped or not (self.computing or self._worker.must_arrange)
                    )
                    version = self._worker.holdings.version_of(layer)
                    held = version is not None and era == self._worker.era and not self._changed.stopped
                    loan = self._compute.layer(layer).lend() if held else None
                finally:
                    self.waiting -= 1
                    self._changed.notify_all()
            if version is None or loan is None:
                raise NotHeld(f"{self._worker.node} holds no copy of layer {layer} in era {era}")
            yield layer, version, loan

"""Hands on what an instruction gave once its bytes are in the host's memory, while the next instruction runs."""

# On a card a result is copied out beside the computing (``compute.device``). The worker hears twice of such an
# instruction:
#
#     compute thread                        "hand on"
#      │ its kernels are done: it counts      │
#      │ as done, and others may follow       │ waits for the copy's event, without the lock
#      │ the next instruction                 │ lock held: the result goes into the outbox, and is sent
#
# In between a plan may take the duty away, or a commit end the step. Then the result is dropped, as that of any work
# that is no longer this node's (``Runner.hand_on``). Results are handed on in the order in which they were made.

import threading
from collections.abc import Callable
from queue import SimpleQueue

from culm.pipeline.tensors.values import Value
from culm.stage_server.compute.compute import Result
from culm.stage_server.compute.device import Event
from culm.stage_server.compute.layer import Values
from culm.stage_server.turn import Turn
from culm.stage_server.worker.work import Reduce, Run
from culm.stage_server.worker.worker import Worker


class HandingOn:
    """One thread, from the first result that comes later on: a node that computes on the CPU has none."""

    def __init__(self, worker: Worker[Value], changed: Turn, after_event: Callable[[], None]) -> None:
        """``after_event``: called with the node's lock held, once the worker has a result."""
        self._worker = worker
        self._changed = changed
        self._after_event = after_event
        # What to wait for, and what to tell the worker then.
        self._waiting: SimpleQueue[tuple[Event, Callable[[], None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def follow(self, work: Run[Value], result: Result) -> None:
        """The instruction is done; what it gave follows when its event has passed. Called with the lock held."""
        self._worker.runner.note(work)
        self._follow(result.copied, lambda: self._worker.runner.hand_on(work, result.value, result.accumulated))

    def follow_layer(self, work: Reduce[Value], layer: int, values: Values, copied: Event) -> None:
        """The same of a layer that leaves while the last backward of its block runs."""
        self._worker.runner.summing.leaves(work, layer)
        self._follow(copied, lambda: self._worker.has_left(work, values))

    def _follow(self, copied: Event, hand_on: Callable[[], None]) -> None:
        self._waiting.put((copied, hand_on))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hand on", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """What waits is of no use to a node that ends. Nobody waits for a device that may be stuck."""
        self._waiting.put(None)

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            copied, hand_on = waiting
            copied.wait()  # what it raises ends the node, as on every thread
            with self._changed:
                if self._changed.stopped:
                    return
                hand_on()
                self._after_event()
            del waiting, copied, hand_on  # they hold tensors

"""Dying on purpose at a named instruction, as a preempted machine would: nothing flushed, nothing said."""

import os
import signal
from collections.abc import Iterable

from culm.pipeline.flow import CROSSES, FORWARDS, maker_of
from culm.pipeline.keys import Key
from culm.pipeline.places import Place, parse_place
from culm.stage_server.worker.work import Apply, Load, Run, Sum, V, Work

KILLED = 128 + signal.SIGKILL  # the exit code that shells and container engines give for a killed process
_exit = os._exit  # the real one: see culm.pipeline.user_code.exits


class Faults:
    """The places where this process is to die. Raises ValueError for what names none: see ``culm.pipeline.places``."""

    def __init__(self, places: Iterable[str] = ()) -> None:
        self._places: dict[int, list[Place]] = {}
        for place in places:
            self.add(place)

    def add(self, text: str) -> None:
        place = parse_place(text)
        self._places.setdefault(place.step, []).append(place)

    def before(self, work: Work[V] | Load) -> None:
        """The compute thread begins this."""
        if not self._places:
            return
        if isinstance(work, Run) and not work.redundant:
            self.at(work.step, "forward" if work.instruction.op in FORWARDS else "backward", work.instruction)
        elif isinstance(work, Sum):
            self.at(work.step, "sum", work.stage)

    def after(self, work: Work[V] | Load) -> None:
        """The compute thread has done this, and others know it."""
        if self._places and isinstance(work, Apply) and not work.catch_up:
            self.at(work.step, "commit")

    def passes(self, kind: str, key: Key) -> None:
        """A piece of the tensor goes on its way, or has come. ``kind``: send or receive."""
        if key.step not in self._places:
            return
        if key.kind in CROSSES:
            self.at(key.step, kind, maker_of(key))
        elif kind == "send":
            self.at(key.step, "ship", key.stage)

    def at(self, step: int, kind: str, label: object = "") -> None:
        """The process is at this instruction of this step; it may be its last. ``label``: what prints as it."""
        for place in self._places.get(step, ()):
            kind_fits = place.kind == kind or (not place.kind and kind in ("forward", "backward"))
            if kind_fits and place.label in ("", str(label)):
                die()


def die() -> None:
    """Ends the process at once, whoever it is.

    The kernel ignores a SIGKILL that the first process of a container (PID 1 of its namespace) sends to itself; for
    all others the signal is delivered before ``os.kill`` returns.
    """
    os.kill(os.getpid(), signal.SIGKILL)
    _exit(KILLED)

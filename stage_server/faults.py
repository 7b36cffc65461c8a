"""Dying on purpose at a named instruction, as a preempted machine would: SIGKILL, nothing flushed, nothing said."""

import os
import signal
from collections.abc import Iterable

from stage_server.instructions import Apply, Load, Run, V, Work

KINDS = ("forward", "backward", "send", "receive", "ship", "ready", "commit")


class Faults:
    """The places where this process is to die, each ``STEP:INSTRUCTION``.

    An instruction is a label such as ``2B3`` (before it runs), a kind of ``KINDS`` (the first of its kind in that
    step), or ``kind:label``. Raises ValueError for anything else.
    """

    def __init__(self, places: Iterable[str] = ()) -> None:
        self._places: dict[int, list[tuple[str, str]]] = {}
        for place in places:
            self.add(place)

    def add(self, place: str) -> None:
        step, _, instruction = place.partition(":")
        kind, _, label = instruction.partition(":")
        if not step.isdigit() or not instruction:
            raise ValueError(f"{place!r} names no instruction: write STEP:INSTRUCTION, such as 12:2B3")
        if kind not in KINDS:
            kind, label = "", instruction
        self._places.setdefault(int(step), []).append((kind, label))

    def before(self, work: Work[V] | Load) -> None:
        """The compute thread begins this."""
        if isinstance(work, Run) and not work.redundant:
            self.at(work.step, "forward" if work.instruction.op == "F" else "backward", work.instruction)

    def after(self, work: Work[V] | Load) -> None:
        """The compute thread has done this, and others know it."""
        if isinstance(work, Apply) and not work.catch_up:
            self.at(work.step, "commit")

    def at(self, step: int, kind: str, label: object = "") -> None:
        """The process is at this instruction of this step; it may be its last. ``label``: what prints as it."""
        for wanted_kind, wanted_label in self._places.get(step, ()):
            kind_fits = wanted_kind == kind or (not wanted_kind and kind in ("forward", "backward"))
            if kind_fits and wanted_label in ("", str(label)):
                die()


def die() -> None:
    """Ends the process at once."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal is delivered before this returns

"""That this node is to go, or may have to: who says so, and what the coordinator is told of it."""

# A notice or a signal leads to one report, which is repeated on every attaching: a coordinator that takes over has not
# heard it. A repeat tells the seconds that are left then. Several reasons may stand at once, such as a notice of the
# cloud and SIGTERM, each with its own deadline, and the nearest one counts. A source may move its deadline; then the
# coordinator is told again.

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from culm.protos import coordinator_pb2 as pb
from culm.stage_server.notices import Notice

log = logging.getLogger("culm.stage")

ABSENT_SECONDS = 2.0  # for which a node that was told to stop waits for a coordinator that has gone as well
POLL_SECONDS = 0.1  # between two looks at whether the node was let go
LEAST_SECONDS = 1.0  # that are told as left: none would mean that nobody knows


class Coordinators(Protocol):
    """What ``Orders`` is here."""

    @property
    def attends(self) -> bool: ...

    def report(self, request: pb.AttendRequest) -> None:
        """Never waits."""
        ...

    def absent_seconds(self) -> float: ...


class Departure:
    """Any thread may call. ``stop`` ends the process, which sets ``ended``."""

    def __init__(
        self,
        drain_seconds: float,
        orders: Coordinators,
        stop: Callable[[], None],
        ended: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``drain_seconds``: for handing over after SIGTERM. ``clock`` gives unix seconds, as notices do."""
        self.told = False  # to stop, by a signal: then it joins nobody anew
        self._drain_seconds = drain_seconds
        self._orders = orders
        self._stop = stop
        self._ended = ended
        self._clock = clock
        self._turn = threading.Lock()  # held while a report is put into the stream, so that the newest one comes last
        self._why = ""  # the reason that the coordinator is told; empty: this node need not go
        # Why it is to go -> when, in unix seconds; None: nobody knows.
        self._deadlines: dict[str, float | None] = {}
        self._warning = ""  # why it may have to go

    def repeat(self) -> None:
        """Tells again what stands, with the seconds that are left now."""
        with self._turn:
            if self._warning:
                self._report_warning()
            if self._why:
                self._report()

    def drain(self, why: str, deadline: float | None, told: bool = False) -> None:
        """Asks to be let go: what this node holds is handed over at the next commit. SIGTERM (told), or a notice."""
        with self._turn:
            news = why not in self._deadlines or self._deadlines[why] != deadline
            if not news and (self.told or not told):
                return
            first, before = not self._why, self._nearest()
            self._deadlines[why] = deadline
            if first or (told and not self.told):
                self._why = why
                log.warning("this node asks to hand over what it holds, and goes: %s", why)
            elif self._nearest() == before:
                return
            else:
                log.warning("the time that this node has left to hand over has changed: %s", self._left_in_words())
            self.told = self.told or told
            self._report()

    def noticed(self, notice: Notice) -> None:
        if notice.certain:
            self.drain(notice.why, notice.deadline)
            return
        log.warning("this machine may be taken, which the coordinator is told: %s", notice.why)
        with self._turn:
            self._warning = self._warning or notice.why
            self._report_warning()

    def terminate(self) -> None:
        """SIGTERM: hands over first; a second one, or one that reaches a node that attends nobody, ends it."""
        if self.told or not self._orders.attends:
            self._stop()
            return
        threading.Thread(target=self._hand_over, name="hand over", daemon=True).start()

    def _hand_over(self) -> None:
        """Waits to be let go: for so long as is left, and not for a coordinator that goes as well."""
        give_up = time.monotonic() + self._drain_seconds
        self.drain("it was told to stop", self._clock() + self._drain_seconds, told=True)
        while not self._ended.is_set():
            if self._orders.absent_seconds() > ABSENT_SECONDS:
                log.warning("the coordinator has gone as well: this node ends without handing over")
                self._stop()
            elif time.monotonic() > give_up:
                log.warning("this node was not let go within %g s: it ends without handing over", self._drain_seconds)
                self._stop()
            self._ended.wait(POLL_SECONDS)

    def _nearest(self) -> float | None:
        return min((deadline for deadline in self._deadlines.values() if deadline is not None), default=None)

    def _seconds_left(self) -> float:
        """0: nobody knows."""
        nearest = self._nearest()
        return max(LEAST_SECONDS, nearest - self._clock()) if nearest is not None else 0.0

    def _left_in_words(self) -> str:
        return f"{self._seconds_left():.0f} s" if self._nearest() is not None else "nobody knows how long"

    def _report(self) -> None:
        draining = pb.Draining(why=self._why, seconds_left=self._seconds_left(), told=self.told)
        self._orders.report(pb.AttendRequest(draining=draining))

    def _report_warning(self) -> None:
        self._orders.report(pb.AttendRequest(warned=pb.Warned(why=self._warning)))

"""A notice source made from something that is asked again and again."""

import logging
import threading
from collections.abc import Callable, Iterable

from culm.stage_server.notices.notice import Notice, is_news

log = logging.getLogger("culm.notices")

PROBES = 6  # at first a machine's network may not be up yet
LONGEST_PAUSE = 15.0  # seconds between attempts that fail: half of the shortest warning, which is 30 s


class NoAnswer(Exception):
    """What was asked said nothing that can be used. There is no notice; ask again later."""


class PolledSource:
    """Asks every ``interval`` seconds, less often while it fails, and complains once about each way of failing.

    ``poll`` gives all notices that stand now, or raises NoAnswer. ``probe``, if given, is called before, and a source
    whose probe raises NoAnswer again and again is dropped quietly: nobody asked for that source by name.
    """

    def __init__(
        self,
        name: str,
        poll: Callable[[threading.Event], Iterable[Notice]],
        interval: float,
        probe: Callable[[threading.Event], object] | None = None,
    ) -> None:
        self._name = name
        self._poll = poll
        self._interval = interval
        self._probe = probe
        self._pause = interval
        self._told: dict[str, float | None] = {}
        self._complaints: set[str] = set()

    def wait(self, stop: threading.Event) -> Notice | None:
        if not self._present(stop):
            return None
        while not stop.is_set():
            try:
                for notice in self._poll(stop):
                    if is_news(notice, self._told):
                        return notice
                self._pause = self._interval
            except NoAnswer as error:
                if stop.is_set():
                    break
                self._complain(str(error))
                self._wait_longer(stop)
            else:
                stop.wait(self._pause)
        return None

    def _present(self, stop: threading.Event) -> bool:
        probe = self._probe
        if probe is None:
            return True
        for _ in range(PROBES):
            try:
                probe(stop)
            except NoAnswer as error:
                log.debug("%s: not here: %s", self._name, error)
                self._wait_longer(stop)
                if stop.is_set():
                    break
            else:
                log.info("%s: watched for preemption notices", self._name)
                self._probe, self._pause = None, self._interval
                return True
        return False

    def _wait_longer(self, stop: threading.Event) -> None:
        self._pause = min(2 * self._pause, max(LONGEST_PAUSE, self._interval))
        stop.wait(self._pause)

    def _complain(self, why: str) -> None:
        if why not in self._complaints:
            self._complaints.add(why)
            log.warning("%s: cannot ask for preemption notices, still trying: %s", self._name, why)

"""Waits on all notice sources at once and passes on what they tell."""

import threading
from collections.abc import Callable, Iterable

from culm.stage_server.notices.notice import Notice, NoticeSource, is_news

CLOSING = 2.0  # seconds for a thread that is just connecting


class NoticeWatcher:
    """Calls ``tell`` with each notice that says something new, one at a time, on threads of its own, from ``start`` to
    ``close``.
    """

    def __init__(self, sources: Iterable[NoticeSource], tell: Callable[[Notice], None]) -> None:
        self._tell = tell
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self._told: dict[str, float | None] = {}
        self._threads = [
            threading.Thread(target=self._watch, args=(source,), name=f"notices-{number}", daemon=True)
            for number, source in enumerate(sources)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the threads; may be called twice, before ``start``, and from ``tell`` itself."""
        self._stop.set()
        if threading.current_thread() in self._threads:
            return  # the others may wait for the turn that this one has
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=CLOSING)

    def _watch(self, source: NoticeSource) -> None:
        while (notice := source.wait(self._stop)) is not None:
            with self._turn:
                if self._stop.is_set():
                    return
                if is_news(notice, self._told):
                    self._tell(notice)

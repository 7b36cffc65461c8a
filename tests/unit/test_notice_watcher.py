"""Who waits on all notice sources at once."""

import queue
from pathlib import Path

from culm.stage_server.notices import Notice, NoticeWatcher
from tests.metadata_server import PATIENCE
from tests.unit.test_notices import AT, named, watching


def test_a_watcher_tells_each_notice_once(tmp_path: Path) -> None:
    path = tmp_path / "preempt"
    path.write_text("30")
    twice = [*named(f"file:{path}"), *named(f"file:{path}")]
    with watching(*twice) as notice:
        assert notice().why == f"the file {path} exists"


def write(path: Path, text: str) -> None:
    """At once: between an empty file and its text the watcher may look."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def test_a_deadline_that_moves_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "preempt"
    write(path, "2026-01-02T03:04:05Z")
    with watching(*named(f"file:{path}")) as notice:
        assert notice().deadline == AT
        write(path, "2026-01-02T03:03:05Z")
        assert notice().deadline == AT - 60.0
        write(path, "2026-01-02T03:03:06Z")  # a second is no news
        write(path, "2026-01-02T03:09:05Z")
        assert notice().deadline == AT + 300.0


def test_a_watcher_may_be_closed_by_whom_it_tells(tmp_path: Path) -> None:
    told: queue.SimpleQueue[Notice] = queue.SimpleQueue()

    def tell(notice: Notice) -> None:
        watcher.close()
        told.put(notice)

    watcher = NoticeWatcher(named(f"file:{tmp_path}"), tell)
    watcher.start()
    assert told.get(timeout=PATIENCE).certain
    watcher.close()
    watcher.close()


def test_a_watcher_that_was_not_started_can_be_closed() -> None:
    NoticeWatcher(named("auto"), print).close()

"""Preemption notices: a warning that this machine may be gone soon, from a cloud's metadata service or from a file."""

from culm.stage_server.notices.notice import Notice, NoticeSource
from culm.stage_server.notices.sources import make_sources
from culm.stage_server.notices.watcher import NoticeWatcher
from culm.stage_server.notices.whereabouts import find_machine

__all__ = ["Notice", "NoticeSource", "NoticeWatcher", "find_machine", "make_sources"]

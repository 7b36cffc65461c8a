"""Preemption notices: a warning that this machine may be gone soon, from a cloud's metadata service or from a file."""

from stage_server.notices.notice import Notice, NoticeSource
from stage_server.notices.sources import make_sources
from stage_server.notices.watcher import NoticeWatcher

__all__ = ["Notice", "NoticeSource", "NoticeWatcher", "make_sources"]

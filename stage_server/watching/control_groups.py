"""What Linux' control groups let this process have: of memory, and of processors. Of either version of them."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def memory_limits(root: Path = ROOT) -> Iterator[int]:
    """Bytes, by this process's group and those around it; none where nothing is limited."""
    for group, is_first in _groups("memory", root):
        limit = _read(group / ("memory.limit_in_bytes" if is_first else "memory.max"))
        if limit.isdigit():  # else "max"
            yield int(limit)


def processor_limits(root: Path = ROOT) -> Iterator[float]:
    """How many processors, in the same way; a part of one counts."""
    for group, is_first in _groups("cpu", root):
        quota, period = (
            (_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))
            if is_first
            else _read(group / "cpu.max").partition(" ")[::2]
        )
        if quota.isdigit() and period.isdigit() and int(period):  # else "max", or -1
            yield int(quota) / int(period)


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """The group that limits this process, then those around it, and whether they are of version 1."""
    for line in _read(root / "proc/self/cgroup").splitlines():  # 0::/a/b of version 2, 7:memory:/a/b of version 1
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        inner = PurePosixPath(path.strip("/"))
        # A container sees its own group at the top, whatever the path says.
        for group in (inner, *inner.parents):
            yield top / group, bool(controllers)


def _read(path: Path) -> str:
    """The file's text; nothing where there is no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""How much memory a node may use: its machine's, its container's or its accelerator's."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from culm.stage_server.compute.device import Device


def memory_bytes(device: Device, said: int = 0) -> int:
    """``said``: by whoever started the node; 0 if nobody has said."""
    if said:
        return said
    total = device.memory().total
    return min([total, *cgroup_limits()]) if device.in_host else total


def cgroup_limits(root: Path = Path("/")) -> Iterator[int]:
    """Of this process's control group and those around it, of either version; none where nothing is limited."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:  # 0::/a/b of version 2, 7:memory:/a/b of version 1
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, name = ("", "memory.max") if not controllers else ("memory", "memory.limit_in_bytes")
        inner = PurePosixPath(path.strip("/"))
        # A container sees its own group at the top, whatever the path says.
        for group in (inner, *inner.parents):
            try:
                limit = (root / "sys/fs/cgroup" / top / group / name).read_text().strip()
            except OSError:
                continue
            if limit.isdigit():  # else "max"
                yield int(limit)

"""A container without an engine: its own root, of which only what is mounted can be written, and its own environment.

What an engine adds beside that (a network of its own, limits, a process namespace) is left out: the machines of
``network.py`` have the namespaces.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
USER = 10001  # the images' own
# Programs, Python and Culm, each at the path that it has outside. All else of the root is made for the container.
GIVEN = ("/usr", "/proc", "/sys")
LINKS = ("/bin", "/sbin", "/lib", "/lib64")
ETC = ("alternatives", "group", "ld.so.cache", "localtime", "nsswitch.conf", "ssl")
BEGIN = """
set -eu
root=/mnt
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$root"
bind() { # SOURCE TARGET OPTIONS
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")" && touch "$root$2"; fi
  mount --bind "$1" "$root$2"
  mount -o "remount,bind,$3" "$root$2"
}
mkdir -m 1777 "$root/tmp" "$root/var" "$root/var/tmp"
mkdir "$root/etc" "$root/dev"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
"""


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    writable: bool = False


def contained(
    words: Sequence[str],
    environment: Mapping[str, str],
    mounts: Sequence[Mount],
    *,
    code: Path = ROOT,
    user: int = USER,
    group: int = USER,
    read_only: bool = True,
) -> list[str]:
    """The command that runs ``words`` so, as the very process that is started. ``code``: where Culm's own lies."""
    lines = [BEGIN]
    for link in LINKS:
        lines.append(f'if [ -L {link} ]; then ln -s "$(readlink {link})" "$root{link}"; fi')
    for folder in GIVEN:
        lines.append(f"bind {folder} {folder} {'rw' if folder == '/proc' else 'ro'}")
    lines += [f'[ ! -e /etc/{name} ] || cp -a /etc/{name} "$root/etc/{name}"' for name in ETC]
    lines.append(f'echo "culm:x:{user}:{group}::/home/culm:/bin/sh" > "$root/etc/passwd"')
    for mount in mounts:
        lines.append(f"bind {mount.source} {mount.target} {'rw' if mount.writable else 'ro'}")
    # After what is mounted: the code may lie below /tmp, which pods mount.
    own = {p.resolve() for p in (ROOT, code, Path(sys.prefix), Path(sys.base_prefix))} | {Path(sys.prefix)}
    for folder in sorted(str(p) for p in own if not p.is_relative_to("/usr")):
        lines.append(f"bind {folder} {folder} ro")
    if read_only:
        lines.append('mount -o remount,ro "$root"')
    path = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    told = {"PATH": path, "PYTHONPATH": str(code), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **environment}
    who = ["setpriv", "--reuid", str(user), "--regid", str(group), "--clear-groups", "--pdeathsig", "KILL"]
    caps = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if user else []
    inner = ["chroot", "/mnt", *who, *caps, "env", "-i", *(f"{k}={v}" for k, v in told.items()), *words]
    lines.append(f"exec {shlex.join(inner)}")
    return ["unshare", "--mount", "sh", "-c", "\n".join(lines)]


def is_root() -> bool:
    return os.geteuid() == 0

"""Machines on one machine: a namespace each, with a host name and an address, joined by a bridge in one more."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from culm.local.processes import Child

START_SECONDS = 60.0
POLL_SECONDS = 0.05


class Network:
    """Namespaces for ``names``. Nothing of them has a name outside, so nothing remains when their processes end."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._names = names
        self._folder = folder
        self._holders: dict[str, Child] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._hold("")
            self._run(self.within("", "ip", "link", "add", "bridge", "type", "bridge"))
            self._run(self.within("", "ip", "link", "set", "bridge", "up"))
            for name in self._names:
                self._join(name)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, name: str) -> str:
        return f"10.78.0.{self._names.index(name) + 1}"

    def within(self, name: str, *words: str) -> list[str]:
        """The command that runs ``words`` on the machine, as the very process that is started."""
        own = f"/proc/{self._holders[name].pid}/ns"
        return ["nsenter", f"--net={own}/net", f"--uts={own}/uts", *words]

    def _port(self, name: str) -> str:
        """The bridge's end of the machine's link: a device's name has 15 characters at most."""
        return f"port-{self._names.index(name)}"

    def cut(self, name: str) -> None:
        """Nothing reaches the machine any more, nor leaves it."""
        self._run(self.within("", "ip", "link", "set", self._port(name), "down"))

    def heal(self, name: str) -> None:
        self._run(self.within("", "ip", "link", "set", self._port(name), "up"))

    def _join(self, name: str) -> None:
        self._hold(name)
        pair = ["ip", "link", "add", self._port(name), "type", "veth", "peer", "name", "eth0", "netns"]
        self._run(self.within("", *pair, str(self._holders[name].pid)))
        self._run(self.within("", "ip", "link", "set", self._port(name), "master", "bridge", "up"))
        for words in (
            ("hostname", name),
            ("ip", "link", "set", "lo", "up"),
            ("ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
        ):
            self._run(self.within(name, *words))

    def _hold(self, name: str) -> None:
        log = self._folder / f"holder-{name}.log"
        held = Child.start(["unshare", "--net", "--uts", "sleep", "infinity"], log, os.environ)
        self._holders[name] = held
        self._stack.callback(held.stop, 0.0)
        deadline = time.monotonic() + START_SECONDS
        while Path(f"/proc/{held.pid}/comm").read_text() != "sleep\n":
            if held.wait(POLL_SECONDS) or time.monotonic() > deadline:
                raise RuntimeError(f"no namespace for {name}: {log.read_text()}")

    @staticmethod
    def _run(words: Sequence[str]) -> None:
        subprocess.run(words, check=True, timeout=START_SECONDS)

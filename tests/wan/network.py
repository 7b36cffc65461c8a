"""Hosts with addresses of their own on one machine: a network namespace each, and a relay that delays and cuts."""

import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from culm.local.processes import Child

PREFIX = "culm-wan"
START_SECONDS = 20.0
POLL_SECONDS = 0.05
EVERYBODY = "*"


class Network:
    """Namespaces for ``hosts``, all pairs joined by the relay. Left, nothing of it remains.

    ``relay`` is a program for root, called as ``relay CONTROL_SOCKET NAMESPACE=ADDRESS...``. It puts a device with the
    address into each namespace, says ``ready`` and obeys JSON datagrams such as
    ``{"a": ADDRESS, "b": ADDRESS, "delay_ms": 10, "oneway": true, "up": false}``.
    """

    def __init__(self, relay: Path, hosts: Sequence[str], delay_ms: float) -> None:
        self._relay_program = relay
        self._delay_ms = delay_ms
        self._namespaces = {host: f"{PREFIX}-{os.getpid()}-{host}" for host in hosts}
        self._addresses = {host: f"10.77.0.{number}" for number, host in enumerate(hosts, 1)}
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX)  # short: a socket's path has at most 107 characters
        self._control = str(Path(self._folder.name) / "control")
        self._relay: Child | None = None

    def address(self, host: str) -> str:
        return self._addresses[host]

    def within(self, host: str, *words: str) -> list[str]:
        """The command that runs ``words`` on the host, as the very process that is started."""
        return ["ip", "netns", "exec", self._namespaces[host], *words]

    def cut(self, one: str, other: str = EVERYBODY) -> None:
        """Nothing passes between the two any more, either way."""
        self._tell(one, other, up=False)

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """What the sender says does not arrive; the other direction stays."""
        self._tell(sender, receiver, up=False, oneway=True)

    def heal(self, one: str, other: str = EVERYBODY) -> None:
        self._tell(one, other, up=True)

    def _tell(self, one: str, other: str, **what: object) -> None:
        ends = {"a": self._addresses.get(one, one), "b": self._addresses.get(other, other)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as control:
            control.sendto(json.dumps({**ends, **what}).encode(), self._control)

    def __enter__(self) -> Self:
        _remove_leftovers()
        try:
            for namespace in self._namespaces.values():
                subprocess.run(["ip", "netns", "add", namespace], check=True)
            self._start_relay()
            self._tell(EVERYBODY, EVERYBODY, delay_ms=self._delay_ms)
        except BaseException:
            self.close()
            raise
        return self

    def _start_relay(self) -> None:
        ends = [f"{self._namespaces[host]}={address}" for host, address in self._addresses.items()]
        log = Path(self._folder.name) / "relay.log"
        self._relay = Child.start([str(self._relay_program), self._control, *ends], log, os.environ)
        deadline = time.monotonic() + START_SECONDS
        while "ready" not in log.read_text():
            if self._relay.wait(POLL_SECONDS) or time.monotonic() > deadline:
                raise RuntimeError(f"{self._relay_program} is not ready: {log.read_text()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the relay, whose devices vanish with it, then removes the namespaces."""
        if self._relay is not None:
            self._relay.stop(0.0)
            self._relay = None
        for namespace in self._namespaces.values():
            if (Path("/run/netns") / namespace).exists():
                subprocess.run(["ip", "netns", "delete", namespace], check=True)
        self._folder.cleanup()


def _remove_leftovers() -> None:
    """Namespaces of a test process that was killed: its children ended with it, their names remain."""
    for path in Path("/run/netns").glob(f"{PREFIX}-*"):
        found = re.match(rf"{PREFIX}-(\d+)-", path.name)
        if found and not Path("/proc", found[1]).exists():
            subprocess.run(["ip", "netns", "delete", path.name], check=True)

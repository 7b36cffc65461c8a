"""What this process takes of its machine, looked at every few seconds: processors, memory, an accelerator."""

# A thread of its own looks: a driver that hangs, or takes seconds to answer, delays no heartbeat. Heartbeats take the
# newest look that was not told yet, if there is one.

import logging
import os
import threading
import time
from collections.abc import Callable

import psutil

from culm.pipeline.resources import Resources
from culm.stage_server.compute.device import CPU, Device, busy_share
from culm.stage_server.watching.control_groups import processor_limits
from culm.stage_server.watching.memory import memory_bytes

log = logging.getLogger("culm.stage")

# Between two looks. One takes 50 us, and a coordinator of a thousand nodes hears of two hundred a second.
LOOK_SECONDS = 5.0


class ResourceMeter:
    """Of this process alone: those that load samples for it are not among it. Any thread may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun, self._cpu_begun = clock(), time.process_time()
        self._process = psutil.Process()
        self._processors = min([float(_processors(self._process)), *processor_limits()])
        self._device: Device = CPU
        self._memory = memory_bytes(CPU)
        # Replaced whole, so no lock is needed. What was told is known by identity.
        self.newest: Resources | None = None
        self._told: Resources | None = None
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="resources", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def computes_on(self, device: Device, said: int = 0) -> None:
        """The node's device, once it is known. ``said``: the memory that it may use, as for ``memory_bytes``."""
        self._memory = memory_bytes(CPU, said if device.in_host else 0)
        self._device = device

    def news(self) -> Resources | None:
        """The newest look, if this has not given it yet."""
        newest = self.newest
        if newest is self._told:
            return None
        self._told = newest
        return newest

    def tell_again(self) -> None:
        """``news`` gives the newest look once more."""
        self._told = None

    def look(self) -> Resources:
        device = self._device
        of_device = device.memory() if not device.in_host else None
        return Resources(
            seconds=self._clock() - self._begun,
            cpu_seconds=time.process_time() - self._cpu_begun,
            processors=self._processors,
            resident_bytes=self._process.memory_info().rss,
            memory_bytes=self._memory,
            accelerator_busy=busy_share(device),
            accelerator_used_bytes=of_device.total - of_device.free if of_device is not None else 0,
            accelerator_bytes=of_device.total if of_device is not None else 0,
        )

    def _run(self) -> None:
        while True:
            try:
                self.newest = self.look()
            except Exception:  # of the system, or a card's driver: nothing that is trained depends on it
                log.debug("could not look at what this process takes", exc_info=True)
            if self._closed.wait(LOOK_SECONDS):
                return


def _processors(process: psutil.Process) -> int:
    """Those that the process may run on, where the system says."""
    affinity = getattr(process, "cpu_affinity", None)
    return len(affinity()) if affinity is not None else os.cpu_count() or 1

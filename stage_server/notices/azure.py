"""Azure: scheduled events from the instance metadata service."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC
from email.utils import parsedate_to_datetime

from culm.pipeline.machine import Machine
from culm.stage_server.notices.metadata import MetadataService, expect, json_object, word_of
from culm.stage_server.notices.notice import Notice
from culm.stage_server.notices.polled import NoAnswer

INTERVAL = 1.0  # seconds; an eviction is announced 30 s ahead at least
ENABLING = 120.0  # seconds that the first request may take: it switches scheduled events on for the VM
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
COMPUTE = "/metadata/instance/compute?api-version=2021-02-01&format=json"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

ACTIONS = {  # what will happen, and whether the process dies of it
    "Preempt": ("evict this spot VM", True),
    "Terminate": ("delete this VM", True),
    "Reboot": ("reboot this VM", True),
    "Redeploy": ("move this VM, losing what it holds", True),
    "Freeze": ("pause this VM for some seconds", False),
}


class Azure:
    """What an Azure VM is told about itself and its neighbours. ``clock`` gives unix seconds."""

    def __init__(self, service: MetadataService, clock: Callable[[], float] = time.time) -> None:
        self._service = service
        self._clock = clock
        self._name: str | None = None
        self._begun: dict[str, float] = {}  # events that have started, by what is said of them -> when that was seen

    def probe(self, stop: threading.Event) -> None:
        """NoAnswer if this is no Azure VM."""
        self._name = self._ask(NAME, stop).decode(errors="replace").strip()

    def poll(self, stop: threading.Event) -> Iterator[Notice]:
        """The notices that stand now for this VM."""
        if not self._name:
            try:
                self.probe(stop)
            except NoAnswer:
                self._name = None  # asked for again the next time; if the service is absent, the events say so too
        now = self._clock()
        for notice in scheduled_events(self._ask(EVENTS, stop, patience=ENABLING), self._name, now):
            begun = self._begun.setdefault(notice.why, now) if notice.deadline == now else notice.deadline
            yield replace(notice, deadline=begun)

    def machine(self, stop: threading.Event) -> Machine:
        """What VM this is; NoAnswer if it is none of Azure's."""
        compute = json_object(self._ask(COMPUTE, stop), "Azure's instance metadata")
        size, region, zone, priority = (word_of(compute, k) for k in ("vmSize", "location", "zone", "priority"))
        # Azure numbers the zones of a region.
        where = f"{region}-{zone}" if region and zone else ""
        return Machine("azure", size, region, where, "spot" if priority.lower() == "spot" else "on-demand")

    def _ask(self, path: str, stop: threading.Event, patience: float = 0.0) -> bytes:
        return expect(self._service.ask("GET", path, {"Metadata": "true"}, stop, patience), f"Azure's {path}")


def scheduled_events(body: bytes, vm: str | None, now: float) -> list[Notice]:
    """Reads ``{"Events": [{"EventId", "EventType", "Resources", "NotBefore"}]}``, at ``now`` in unix seconds.

    All VMs of a scale set or an availability set are told of each other's events; those that do not name ``vm`` are
    left out. Where it cannot be known whom an event concerns, it is a hint.
    """
    events = json_object(body, "Azure's scheduled events").get("Events")
    if not isinstance(events, list):
        raise NoAnswer(f"Azure's scheduled events are no list: {body[:80]!r}")
    told = [_notice(event, vm, now) for event in events if isinstance(event, dict)]
    return [notice for notice in told if notice is not None]


def _notice(event: dict[str, object], vm: str | None, now: float) -> Notice | None:
    kind, named = event.get("EventType"), event.get("Resources")
    if not isinstance(kind, str) or kind not in ACTIONS:
        return None
    action, deadly = ACTIONS[kind]
    why = f"Azure will {action} (event {event.get('EventId')})"
    deadline = _not_before(event.get("NotBefore"), now)
    if vm and isinstance(named, list) and named:
        if vm.casefold() not in (str(name).casefold() for name in named):
            return None
        return Notice(why, deadline, certain=deadly)
    return Notice(f"{why}, or a VM beside it", deadline, certain=False)


def _not_before(text: object, now: float) -> float | None:
    """RFC 1123 as unix seconds; empty once the event has started."""
    if not isinstance(text, str) or not text.strip():
        return now
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()

"""Google Cloud: whether this instance is being preempted, from the metadata server."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

from culm.pipeline.machine import Machine
from culm.stage_server.notices.metadata import MetadataService, expect
from culm.stage_server.notices.notice import Notice
from culm.stage_server.notices.polled import NoAnswer

INTERVAL = 1.0  # seconds between requests, each of which hangs until something changes
HANG = 60  # seconds for which the server is asked to hold a request open
# Seconds from the notice to the end: how long the shutdown of a spot VM takes at most, which begins with the notice.
# A VM made with --preemption-notice-duration=120s has so long before that. The metadata server does not tell the
# option's value: whoever sets it writes it into the VM's own metadata too.
WARNING, LONGEST_WARNING = 30.0, 600.0
TYPE = "/computeMetadata/v1/instance/machine-type"
ZONE = "/computeMetadata/v1/instance/zone"
PREEMPTIBLE = "/computeMetadata/v1/instance/scheduling/preemptible"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
NOTICE = "/computeMetadata/v1/instance/attributes/culm-notice-seconds"
HEADERS = {"Metadata-Flavor": "Google"}

log = logging.getLogger("culm.notices")


class Gcp:
    """What a Compute Engine instance is told about itself. ``clock`` gives unix seconds."""

    def __init__(self, service: MetadataService, clock: Callable[[], float] = time.time) -> None:
        self._service = service
        self._clock = clock
        self._etag = ""
        self._warning: float | None = None  # seconds, once the instance's own metadata have been read
        self._seen: float | None = None  # when the notice was first seen; None: it does not stand

    def probe(self, stop: threading.Event) -> None:
        """NoAnswer if this is no Compute Engine instance."""
        self._ask(PREEMPTED, stop)
        self._etag = ""  # what it said has yet to be told, not only what changes afterwards

    def poll(self, stop: threading.Event) -> Iterator[Notice]:
        """The notice, if it stands; from the second time on, as soon as it stands."""
        # After a failure the value itself is asked for: a server that restarted may have given the same etag anew.
        etag, self._etag = self._etag, ""
        if self._warning is None:
            self._warning, etag = self._notice_seconds(stop), ""  # nothing hangs until this is known
        if etag:
            query = urlencode({"wait_for_change": "true", "timeout_sec": HANG, "last_etag": etag})
            body = self._ask(f"{PREEMPTED}?{query}", stop, patience=HANG)
        else:
            body = self._ask(PREEMPTED, stop)
        if not is_preempted(body):
            self._seen = None
            return
        self._seen = self._clock() if self._seen is None else self._seen
        warning = WARNING if self._warning is None else self._warning
        yield Notice("GCP preempts this instance", self._seen + warning, certain=True)

    def machine(self, stop: threading.Event) -> Machine:
        """What instance this is; NoAnswer if it is none of Compute Engine's."""
        # Types and zones come as projects/NUMBER/zones/NAME.
        names = (self._ask(path, stop).decode(errors="replace") for path in (TYPE, ZONE))
        instance_type, zone = (name.strip().rpartition("/")[2] for name in names)
        preemptible = self._ask(PREEMPTIBLE, stop).strip().upper() == b"TRUE"
        return Machine("gcp", instance_type, "", zone, "spot" if preemptible else "on-demand")

    def _notice_seconds(self, stop: threading.Event) -> float | None:
        """How long before its end the instance is told; None where that cannot be asked now."""
        try:
            answer = self._service.ask("GET", NOTICE, HEADERS, stop)
        except NoAnswer:
            return None
        if answer.headers.get("metadata-flavor") != "Google" or answer.status not in (200, 404):
            return None
        if answer.status == 404:  # nobody has set it
            return WARNING
        try:
            seconds = float(answer.body)
        except ValueError:
            seconds = -1.0
        if not 0.0 <= seconds <= LONGEST_WARNING:
            mend = f"set it to the VM's preemption notice duration, a number up to {LONGEST_WARNING:g}"
            told = f"{answer.body[:80]!r} is no time; {WARNING:g} s count"
            log.warning("gcp: the instance's metadata culm-notice-seconds: %s; %s", told, mend)
            return WARNING
        return max(WARNING, seconds)

    def _ask(self, path: str, stop: threading.Event, patience: float = 0.0) -> bytes:
        answer = self._service.ask("GET", path, HEADERS, stop, patience)
        body = expect(answer, f"GCP's {path.partition('?')[0]}")
        if answer.headers.get("metadata-flavor") != "Google":
            raise NoAnswer("whoever answers is not GCP's metadata server: no Metadata-Flavor: Google")
        self._etag = answer.headers.get("etag", "")
        return body


def is_preempted(body: bytes) -> bool:
    """Reads TRUE or FALSE."""
    said = body.strip().upper()
    if said not in (b"TRUE", b"FALSE"):
        raise NoAnswer(f"GCP's {PREEMPTED} is neither TRUE nor FALSE: {body[:80]!r}")
    return said == b"TRUE"

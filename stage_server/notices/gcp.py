"""Google Cloud: whether this instance is being preempted, from the metadata server."""

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
WARNING = 30.0  # seconds from the notice to the end
TYPE = "/computeMetadata/v1/instance/machine-type"
ZONE = "/computeMetadata/v1/instance/zone"
PREEMPTIBLE = "/computeMetadata/v1/instance/scheduling/preemptible"
PREEMPTED = "/computeMetadata/v1/instance/preempted"


class Gcp:
    """What a Compute Engine instance is told about itself. ``clock`` gives unix seconds."""

    def __init__(self, service: MetadataService, clock: Callable[[], float] = time.time) -> None:
        self._service = service
        self._clock = clock
        self._etag = ""

    def probe(self, stop: threading.Event) -> None:
        """NoAnswer if this is no Compute Engine instance."""
        self._ask(PREEMPTED, stop)
        self._etag = ""  # what it said has yet to be told, not only what changes afterwards

    def poll(self, stop: threading.Event) -> Iterator[Notice]:
        """The notice, if it stands; from the second time on, as soon as it stands."""
        # After a failure the value itself is asked for: a server that restarted may have given the same etag anew.
        etag, self._etag = self._etag, ""
        if etag:
            query = urlencode({"wait_for_change": "true", "timeout_sec": HANG, "last_etag": etag})
            body = self._ask(f"{PREEMPTED}?{query}", stop, patience=HANG)
        else:
            body = self._ask(PREEMPTED, stop)
        if (notice := preemption(body, self._clock())) is not None:
            yield notice

    def machine(self, stop: threading.Event) -> Machine:
        """What instance this is; NoAnswer if it is none of Compute Engine's."""
        # Types and zones come as projects/NUMBER/zones/NAME.
        names = (self._ask(path, stop).decode(errors="replace") for path in (TYPE, ZONE))
        instance_type, zone = (name.strip().rpartition("/")[2] for name in names)
        preemptible = self._ask(PREEMPTIBLE, stop).strip().upper() == b"TRUE"
        return Machine("gcp", instance_type, "", zone, "spot" if preemptible else "on-demand")

    def _ask(self, path: str, stop: threading.Event, patience: float = 0.0) -> bytes:
        answer = self._service.ask("GET", path, {"Metadata-Flavor": "Google"}, stop, patience)
        body = expect(answer, f"GCP's {path.partition('?')[0]}")
        if answer.headers.get("metadata-flavor") != "Google":
            raise NoAnswer("whoever answers is not GCP's metadata server: no Metadata-Flavor: Google")
        self._etag = answer.headers.get("etag", "")
        return body


def preemption(body: bytes, now: float) -> Notice | None:
    """Reads TRUE or FALSE, at ``now`` in unix seconds."""
    said = body.strip().upper()
    if said not in (b"TRUE", b"FALSE"):
        raise NoAnswer(f"GCP's {PREEMPTED} is neither TRUE nor FALSE: {body[:80]!r}")
    return Notice("GCP preempts this instance", now + WARNING, certain=True) if said == b"TRUE" else None

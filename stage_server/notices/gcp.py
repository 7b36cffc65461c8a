"""Google Cloud: whether this instance is being preempted, from the metadata server."""

import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

from stage_server.notices.metadata import MetadataService, expect
from stage_server.notices.notice import Notice
from stage_server.notices.polled import NoAnswer

INTERVAL = 1.0  # seconds between requests, each of which hangs until something changes
HANG = 60  # seconds for which the server is asked to hold a request open
WARNING = 30.0  # seconds from the notice to the end
PREEMPTED = "/computeMetadata/v1/instance/preempted"


class Gcp:
    """What a Compute Engine instance is told about itself. ``clock`` gives unix seconds."""

    def __init__(self, service: MetadataService, clock: Callable[[], float] = time.time) -> None:
        self._service = service
        self._clock = clock
        self._etag = ""

    def probe(self, stop: threading.Event) -> None:
        """NoAnswer if this is no Compute Engine instance."""
        self._preempted(stop, PREEMPTED)

    def poll(self, stop: threading.Event) -> Iterator[Notice]:
        """The notice, if it stands; from the second time on, as soon as it stands."""
        # After a failure the value itself is asked for: a server that restarted may have given the same etag anew.
        etag, self._etag = self._etag, ""
        if etag:
            query = urlencode({"wait_for_change": "true", "timeout_sec": HANG, "last_etag": etag})
            body = self._preempted(stop, f"{PREEMPTED}?{query}", patience=HANG)
        else:
            body = self._preempted(stop, PREEMPTED)
        if (notice := preemption(body, self._clock())) is not None:
            yield notice

    def _preempted(self, stop: threading.Event, path: str, patience: float = 0.0) -> bytes:
        answer = self._service.ask("GET", path, {"Metadata-Flavor": "Google"}, stop, patience)
        body = expect(answer, f"GCP's {PREEMPTED}")
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

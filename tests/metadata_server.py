"""The three clouds' metadata services on one loopback port: real HTTP, with what each insists on, no cloud."""

import json
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PATIENCE = 60.0  # seconds for what a test waits for; reached only by a test that fails

AWS_IDENTITY = json.dumps(
    {"instanceType": "p3.2xlarge", "region": "us-east-1", "availabilityZone": "us-east-1b", "version": "2017-09-30"}
).encode()
GCP_ITEMS = {
    "/computeMetadata/v1/instance/machine-type": b"projects/42/machineTypes/c2-standard-8",
    "/computeMetadata/v1/instance/zone": b"projects/42/zones/us-central1-f",
    "/computeMetadata/v1/instance/scheduling/preemptible": b"TRUE",
}
AZURE_COMPUTE = json.dumps(
    {"name": "vm_0", "vmSize": "Standard_NC6s_v3", "location": "westeurope", "zone": "2", "priority": "Spot"}
).encode()
AZURE_TEXTS = {"/metadata/instance/compute/location": b"westeurope", "/metadata/instance/compute/zone": b"2"}


class MetadataServer:
    """Answers from construction to ``close``, for ``words`` alone, a cloud's first word of its paths each."""

    def __init__(
        self,
        address: tuple[str, int] = ("127.0.0.1", 0),
        words: Collection[str] = ("latest", "computeMetadata", "metadata"),
    ) -> None:
        """Nothing is announced at first."""
        self._words = words
        self.asked: list[str] = []  # method and path of every request, in order of arrival
        self._changed = threading.Condition()
        self._closed = False
        self.identity = AWS_IDENTITY  # what AWS tells of the machine
        self._failing: tuple[int, bytes] | None = None
        self._hanging = False
        self._tokens: set[str] = set()
        self._action: bytes | None = None
        self._rebalance: bytes | None = None
        self._preempted = False
        self._notice_seconds: bytes | None = None
        self._flavor = "Google"
        self._vm: str | None = "vm_0"
        self._events: list[dict[str, object]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            def do_PUT(self) -> None:
                outer._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        self.host = f"{address[0]}:{self._server.server_port}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="metadata", daemon=True).start()

    def close(self) -> None:
        with self._change():
            self._closed = True
        self._server.shutdown()
        self._server.server_close()

    # ---- what tests do ----------------------------------------------------------------------------------------------

    def interrupt_aws(self, action: str = "terminate", time: str = "2026-01-02T03:04:05Z") -> None:
        with self._change():
            self._action = json.dumps({"action": action, "time": time}).encode()

    def recommend_rebalance_aws(self) -> None:
        with self._change():
            self._rebalance = b'{"noticeTime": "2026-01-02T03:00:00Z"}'

    def expire_tokens_aws(self) -> None:
        with self._change():
            self._tokens.clear()

    def preempt_gcp(self) -> None:
        with self._change():
            self._preempted = True

    def warn_earlier_gcp(self, seconds: str) -> None:
        """What the instance's own metadata say of its preemption notice duration."""
        with self._change():
            self._notice_seconds = seconds.encode()

    def pose_as_another_than_gcp(self) -> None:
        with self._change():
            self._flavor = "Other"

    def schedule_azure(self, kind: str, *vms: str, event: str = "E1", not_before: str = "") -> None:
        """An event for ``vms``; this one is called vm_0. Without ``not_before`` it has started."""
        with self._change():
            self._events.append(
                {
                    "EventId": event,
                    "EventType": kind,
                    "ResourceType": "VirtualMachine",
                    "Resources": list(vms),
                    "EventStatus": "Scheduled" if not_before else "Started",
                    "NotBefore": not_before,
                    "DurationInSeconds": -1,
                }
            )

    def move_azure(self, event: str, not_before: str) -> None:
        """The event is put off, or comes nearer; without ``not_before`` it has started."""
        with self._change():
            for each in self._events:
                if each["EventId"] == event:
                    each.update(NotBefore=not_before, EventStatus="Scheduled" if not_before else "Started")

    def hide_the_name_azure(self) -> None:
        with self._change():
            self._vm = None

    def fail(self, status: int, body: bytes = b"") -> None:
        """Answers everything so, until ``recover``."""
        with self._change():
            self._failing = status, body

    def hang(self) -> None:
        """Takes requests and answers none, until ``recover``."""
        with self._change():
            self._hanging = True

    def recover(self) -> None:
        with self._change():
            self._failing, self._hanging = None, False

    def until_asked(self, what: str, times: int = 1) -> None:
        """Returns when ``times`` requests have come in whose line holds ``what``."""
        with self._changed:
            enough = self._changed.wait_for(lambda: sum(what in line for line in self.asked) >= times, PATIENCE)
        assert enough, f"not asked for {what} {times} times: {self.asked}"

    # ---- what clouds do ---------------------------------------------------------------------------------------------

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with self._change():
            self.asked.append(f"{request.command} {request.path}")
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._hanging)
            status, body, headers = self._said(request, parts.path, query)
            if self._failing is not None:
                status, body, headers = *self._failing, {}
        try:
            request.send_response(status)
            for name, value in headers.items():
                request.send_header(name, value)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
        except ConnectionError:
            pass  # whoever asked has left

    def _said(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, str]) -> "Said":
        match path.split("/")[1]:
            case word if word not in self._words:
                return 404, b"", {}
            case "latest":
                return self._aws(request, path, query)
            case "computeMetadata":
                return self._gcp(request, path, query)
            case "metadata":
                return self._azure(request, path, query)
        return 404, b"", {}

    def _aws(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, str]) -> "Said":
        if path == "/latest/api/token":
            seconds = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if request.command != "PUT" or not seconds.isdigit() or not 1 <= int(seconds) <= 21600:
                return 400, b"", {}
            token = f"token-{len(self.asked)}=="
            self._tokens.add(token)
            return 200, token.encode(), {"X-aws-ec2-metadata-token-ttl-seconds": seconds}
        if request.headers.get("X-aws-ec2-metadata-token") not in self._tokens:
            return 401, b"", {}
        items = {
            "/latest/dynamic/instance-identity/document": self.identity,
            "/latest/meta-data/instance-life-cycle": b"spot",
            "/latest/meta-data/placement/availability-zone": b"us-east-1b",
            "/latest/meta-data/spot/instance-action": self._action,
            "/latest/meta-data/events/recommendations/rebalance": self._rebalance,
        }
        item = items.get(path)
        return (404, b"", {}) if item is None else (200, item, {"Content-Type": "application/json"})

    def _gcp(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, str]) -> "Said":
        if request.headers.get("Metadata-Flavor") != "Google":
            return 403, b"", {}
        if path in GCP_ITEMS:
            return 200, GCP_ITEMS[path], {"Metadata-Flavor": self._flavor, "ETag": "c3"}
        if path == "/computeMetadata/v1/instance/attributes/culm-notice-seconds":
            status = 404 if self._notice_seconds is None else 200
            return status, self._notice_seconds or b"", {"Metadata-Flavor": self._flavor, "ETag": "d4"}
        if path != "/computeMetadata/v1/instance/preempted":
            return 404, b"", {}
        if query.get("wait_for_change") == "true":
            seen = query.get("last_etag", self._etag())
            self._changed.wait_for(
                lambda: self._closed or self._failing is not None or self._etag() != seen,
                timeout=float(query.get("timeout_sec", "60")),
            )
        value = b"TRUE" if self._preempted else b"FALSE"
        return 200, value, {"Metadata-Flavor": self._flavor, "ETag": self._etag()}

    def _etag(self) -> str:
        return "b2" if self._preempted else "a1"

    def _azure(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, str]) -> "Said":
        if request.headers.get("Metadata") != "true" or "api-version" not in query:
            return 400, b"", {}
        if path == "/metadata/instance/compute/name" and self._vm is not None and query.get("format") == "text":
            return 200, self._vm.encode(), {}
        if path in AZURE_TEXTS and query.get("format") == "text":
            return 200, AZURE_TEXTS[path], {}
        if path == "/metadata/instance/compute" and query.get("format") == "json":
            return 200, AZURE_COMPUTE, {"Content-Type": "application/json"}
        if path == "/metadata/scheduledevents":
            document = {"DocumentIncarnation": len(self._events), "Events": self._events}
            return 200, json.dumps(document).encode(), {"Content-Type": "application/json"}
        return 404, b"", {}


Said = tuple[int, bytes, dict[str, str]]  # status, body, headers


@contextmanager
def nobody() -> Iterator[str]:
    """HOST:PORT of a loopback port at which nobody listens, and nobody else will meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"

"""AWS: spot interruption notices and rebalance recommendations from the instance metadata service, version 2."""

import threading
from collections.abc import Iterator

from culm.pipeline.machine import Machine
from culm.stage_server.notices.metadata import Answer, MetadataService, expect, json_object, word_of
from culm.stage_server.notices.notice import Notice, unix_seconds
from culm.stage_server.notices.polled import NoAnswer

INTERVAL = 5.0  # seconds, as AWS recommends; the warning comes two minutes ahead
TOKEN_SECONDS = 21600  # how long a token serves: six hours, the longest that is granted
TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
IDENTITY = "/latest/dynamic/instance-identity/document"
LIFE_CYCLE = "/latest/meta-data/instance-life-cycle"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Aws:
    """What an EC2 instance is told about itself."""

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._token = ""

    def probe(self, stop: threading.Event) -> None:
        """NoAnswer if this is no EC2 instance."""
        self._renew(stop)

    def poll(self, stop: threading.Event) -> Iterator[Notice]:
        """The notices that stand now, the certain one first."""
        if (action := self._get(ACTION, stop)) is not None:
            yield instance_action(action)
        if (rebalance := self._get(REBALANCE, stop)) is not None:
            yield rebalance_recommendation(rebalance)

    def machine(self, stop: threading.Event) -> Machine:
        """What instance this is; NoAnswer if it is none of EC2's."""
        identity = json_object(self._get(IDENTITY, stop) or b"{}", "AWS's instance identity")
        market = (self._get(LIFE_CYCLE, stop) or b"").decode(errors="replace").strip()
        instance_type, region, zone = (word_of(identity, k) for k in ("instanceType", "region", "availabilityZone"))
        return Machine("aws", instance_type, region, zone, market if market in ("spot", "on-demand") else "")

    def _get(self, path: str, stop: threading.Event) -> bytes | None:
        """The item's body, or None if there is no such item now."""
        if not self._token:
            self._renew(stop)
        answer = self._ask(path, stop)
        if answer.status == 401:  # the token has expired
            self._renew(stop)
            answer = self._ask(path, stop)
        return None if answer.status == 404 else expect(answer, f"AWS's {path}")

    def _ask(self, path: str, stop: threading.Event) -> Answer:
        return self._service.ask("GET", path, {"X-aws-ec2-metadata-token": self._token}, stop)

    def _renew(self, stop: threading.Event) -> None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        token = expect(self._service.ask("PUT", TOKEN, headers, stop), f"AWS's {TOKEN}").strip()
        if not token or not token.isascii() or b"\n" in token:
            raise NoAnswer(f"AWS's {TOKEN} gives no token: {token[:80]!r}")
        self._token = token.decode()


def instance_action(body: bytes) -> Notice:
    """Reads ``{"action": "terminate", "time": ISO 8601}``. An action without a time stands, at no known time."""
    said = json_object(body, "AWS's instance action")
    action, time = said.get("action"), said.get("time")
    if not isinstance(action, str) or not action:
        raise NoAnswer(f"AWS's instance action names no action: {body[:80]!r}")
    if not isinstance(time, str):
        return Notice(f"AWS will {action} this spot instance", None, certain=True)
    return Notice(f"AWS will {action} this spot instance at {time}", unix_seconds(time), certain=True)


def rebalance_recommendation(body: bytes) -> Notice:
    """Reads ``{"noticeTime": ISO 8601}``: when the recommendation was made, which is not when anything happens."""
    if "noticeTime" not in json_object(body, "AWS's rebalance recommendation"):
        raise NoAnswer(f"AWS's rebalance recommendation has no noticeTime: {body[:80]!r}")
    return Notice("AWS recommends a rebalance: this spot instance may be interrupted soon", None, certain=False)

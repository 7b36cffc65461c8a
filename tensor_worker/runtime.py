"""The worker as a function of a function service: AWS Lambda's runtime interface, which is plain HTTP.

An invocation names a graph server, and for how long to work for it. The same process serves one after the other, so the
job's layers and their parameters stay where they are between two of them.
"""

# https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html (November 2026):
#
#     GET  /2018-06-01/runtime/invocation/next              the next event, as JSON; waits until there is one
#     POST /2018-06-01/runtime/invocation/ID/response       its answer
#     POST /2018-06-01/runtime/invocation/ID/error          or why there is none
#
# The event: {"server": "HOST:PORT", "seconds": 20.0}. The answer: {"tasks": 57, "seconds": 3.2}, of tasks alone.
# ``Lambda-Runtime-Deadline-Ms`` is when the service ends the process: no task begins in the last moments before.

import json
import math
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from culm.pipeline.text import told

VERSION = "2018-06-01"
SPARE_SECONDS = 1.0  # before the service ends the process
MOST_SECONDS = 900.0  # that Lambda lets one invocation take


@dataclass(frozen=True, slots=True)
class Asked:
    """One invocation: work for this server until this moment of ``time.monotonic``."""

    server: str
    until: float


Works = Callable[[Asked], dict[str, Any]]  # raises what is told as the invocation's error


def serve(host: str, works: Works, count: int | None = None) -> None:
    """Takes invocations from the runtime interface at HOST:PORT, so many or without end."""
    done = 0
    while count is None or done < count:
        with urllib.request.urlopen(f"http://{host}/{VERSION}/runtime/invocation/next") as response:
            number = response.headers["Lambda-Runtime-Aws-Request-Id"]
            deadline = response.headers.get("Lambda-Runtime-Deadline-Ms", "")
            body = response.read()
        try:
            answer, kind = works(asked(body, deadline)), "response"
        except Exception as error:  # whatever it is: the service is to hear of it, and asks again
            answer, kind = {"errorMessage": told(str(error)), "errorType": type(error).__name__}, "error"
        _post(f"http://{host}/{VERSION}/runtime/invocation/{number}/{kind}", answer)
        done += 1


def asked(body: bytes, deadline_ms: str) -> Asked:
    """Raises ValueError for an event that names no server."""
    event = json.loads(body)
    server = event.get("server") if isinstance(event, dict) else None
    if not isinstance(server, str) or ":" not in server:
        raise ValueError('the event names no graph server: send {"server": "HOST:PORT", "seconds": 20.0}')
    seconds = min(float(event.get("seconds", MOST_SECONDS)), MOST_SECONDS)
    if math.isnan(seconds):  # which is never over
        raise ValueError('the event does not say for how long: send {"server": "HOST:PORT", "seconds": 20.0}')
    if deadline_ms:
        seconds = min(seconds, float(deadline_ms) / 1e3 - time.time() - SPARE_SECONDS)
    return Asked(server, time.monotonic() + max(seconds, 0.0))


def _post(url: str, answer: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(answer).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request):
        pass

"""Asks a cloud's metadata service: plain HTTP on the machine's own link, never through a proxy."""

import http.client
import json
import math
import socket
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

from culm.stage_server.notices.polled import NoAnswer

TIMEOUT = 1.0  # seconds to connect and to be answered: the service is one hop away
SLICE = 0.1  # seconds between looks at ``stop`` while an answer is awaited
LARGEST = 1 << 20  # bytes of an answer that are read


@dataclass(frozen=True, slots=True)
class Answer:
    """Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class MetadataService:
    """One metadata service. ``endpoint`` is http://HOST[:PORT]; ValueError if it is not."""

    def __init__(self, endpoint: str, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{endpoint!r} is not of the form http://HOST:PORT")
        self._endpoint = endpoint
        self._host = parts.hostname
        self._port = parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        stop: threading.Event,
        patience: float = 0.0,
    ) -> Answer:
        """The answer, whatever its status. ``patience`` is how many seconds longer than usual the service may take.

        NoAnswer if there is none, and soon after ``stop`` is set.
        """
        # http.client knows no proxies: a link-local address must not be asked for at one.
        with closing(http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)) as connection:
            try:
                connection.request(method, self._prefix + path, headers=dict(headers))
                self._await_answer(connection.sock, stop, self._timeout + patience)
                response = connection.getresponse()
                body = response.read(LARGEST)
            except TimeoutError as error:
                raise NoAnswer(f"no answer from {self._endpoint} within {self._timeout + patience:g} s") from error
            except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a name or header of no use
                raise NoAnswer(f"no answer from {self._endpoint}: {error}") from error
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def _await_answer(self, sock: socket.socket, stop: threading.Event, seconds: float) -> None:
        """Returns when the first byte is there. In slices, since nothing wakes a thread that waits on a socket."""
        sock.settimeout(SLICE)
        for _ in range(math.ceil(seconds / SLICE)):
            try:
                sock.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                if stop.is_set():
                    raise
                continue
            sock.settimeout(self._timeout)
            return
        raise TimeoutError


def expect(answer: Answer, what: str) -> bytes:
    """The body of an answer that says OK; NoAnswer for any other."""
    if answer.status != 200:
        raise NoAnswer(f"{what} answers {answer.status} {http.client.responses.get(answer.status, '')}".rstrip())
    return answer.body


def json_object(body: bytes, what: str) -> dict[str, object]:
    """NoAnswer if ``body`` is not a JSON object."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"{what} is not JSON: {body[:80]!r}") from error
    if not isinstance(said, dict):
        raise NoAnswer(f"{what} is not a JSON object: {body[:80]!r}")
    return said


def word_of(said: Mapping[str, object], name: str) -> str:
    """Empty where it is no text, such as null."""
    found = said.get(name)
    return found if isinstance(found, str) else ""

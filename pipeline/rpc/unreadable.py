"""What is no message of its method: gRPC itself would write a traceback for each, whoever sends it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of a request."""

    why: str


def lenient(deserializer: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """The deserializer, but that it gives ``Unreadable`` where it would raise."""
    if deserializer is None:
        return None

    def decoded(data: bytes) -> Any:
        try:
            return deserializer(data)
        except (DecodeError, ValueError) as error:
            return Unreadable(f"{len(data)} bytes that are no such message ({error})")

    return decoded


def problem(request: Any) -> str:
    """What is wrong with a request that a behaviour is called with, or that it reads; a stream of them is looked at
    one by one.
    """
    return request.why if isinstance(request, Unreadable) else ""

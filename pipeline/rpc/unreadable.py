"""Bytes that are not a message of their method: gRPC itself would write a traceback for each, whoever sends it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of a request."""

    why: str


def lenient(deserializer: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """The same deserializer, which returns ``Unreadable`` where the given one raises."""
    if deserializer is None:
        return None

    def decoded(data: bytes) -> Any:
        try:
            return deserializer(data)
        except (DecodeError, ValueError) as error:
            return Unreadable(f"the {len(data)} bytes are not a message of this method ({error})")

    return decoded


def problem(request: Any) -> str:
    """Why a request cannot be read; empty: it can. Of a stream each request is asked by itself."""
    return request.why if isinstance(request, Unreadable) else ""

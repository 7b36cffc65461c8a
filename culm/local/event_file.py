"""The events of a run in the folder of its logs, for when its coordinator and Redis are gone.

The file is what ``culm events --json`` prints, so ``--log`` of other commands reads it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import grpc

from culm.pipeline import private
from culm.pipeline.errors import JobError
from culm.pipeline.money.codec import to_line
from culm.pipeline.rpc.channel import details
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb
from culm.terminal.client import connect

log = logging.getLogger("culm.local")

NAME = "events.jsonl"
SECONDS = 30.0  # that reading the log of a long run may take


class EventFile:
    """Takes the events as they come. Training does not end for a full disk: then the file ends there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._failed = False

    def add(self, events: Sequence[pb.ListEventsResponse]) -> None:
        if self._failed or not events:
            return
        try:
            with open(self._path, "a", encoding="utf-8", opener=private.opener) as file:
                file.writelines(f"{to_line(event)}\n" for event in events)
        except OSError as error:
            self._failed = True
            log.warning("events are kept no longer in %s: %s", self._path, error)


def keep(coordinator: str, folder: Path) -> str:
    """Writes what the log of the run at this address holds. Returns why it could not, in words; "" if it did."""
    try:
        channel, stub = connect(coordinator)
        with channel:
            events = list(map(cleaned, stub.ListEvents(pb.ListEventsRequest(from_sequence=1), timeout=SECONDS)))
        private.write_text(folder / NAME, "".join(f"{to_line(event)}\n" for event in events))
    except JobError as error:
        return error.what
    except grpc.RpcError as error:
        return details(error)
    except OSError as error:
        return str(error)
    return ""

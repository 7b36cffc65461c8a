"""Has a run's events written to the trackers that its job names: a process for each, which this one feeds.

A tracker may be slow, away or broken: its process waits, or ends with one line and is begun again. No decision waits
for it. It is told the log from its beginning each time, and writes what it has not: see ``culm.trackers``.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from culm.coordinator.edges.event_log import EventLog
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.money.codec import to_line
from culm.pipeline.text import told

log = logging.getLogger("culm.coordinator")

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0  # before a tracker that has failed is tried again
LONGEST_CONFIG = 100_000  # characters: what an argument of a process takes
CLOSING_SECONDS = 10.0  # for what it has not written yet when the coordinator stops


def flattened(content: Mapping[str, Any]) -> dict[str, Any]:
    """``{"job.steps": 200, ..}`` of the sections of a job."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": inner for key, inner in flattened(value).items()}
        else:
            found[name] = value
    return found


def refuse_missing(job: Job) -> None:
    """Raises JobError for a tracker that the job names and that is not installed. Each is called as its package."""
    for kind in job.track.named if job.track is not None else ():
        if find_spec(kind) is None:
            what = f"{kind} is not installed where the coordinator runs"
            raise JobError(what, f"track.{kind}", f"pip install 'culm[{kind}]', or remove the key")


class Tracking:
    """Of one coordinator."""

    def __init__(self, job: Job, run_id: str, events: Callable[[], EventLog], tell: Callable[[str, str], None]) -> None:
        """``run_id``: the same for every coordinator of the run; ``events``: the log of the present term.

        ``tell``: called with a tracker that has failed and the reason, each reason once in a row.
        """
        self._run_id = run_id
        self._tell = tell
        self._events = events
        self._named = job.track.named if job.track is not None else {}
        config = json.dumps(flattened(job.model_dump(exclude_none=True, exclude={"track"})))
        config = config if len(config) <= LONGEST_CONFIG else "{}"
        self._about = ["--id", run_id, "--name", job.job.name, "--config", config]
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def follow(self) -> None:
        """Never ends. Cancel it, and then ``close``."""
        await asyncio.gather(*(self._keep(kind, where) for kind, where in self._named.items()))

    async def _keep(self, kind: str, where: str) -> None:
        pause, said = PAUSE_SECONDS, ""
        while True:
            try:
                why = await self._once(kind, where)
            except OSError as error:  # no process can be begun: memory is short
                why = told(str(error))
            pause = PAUSE_SECONDS if why != said else min(2 * pause, LONGEST_PAUSE_SECONDS)
            if why != said:
                self._tell(kind, why)
            said = why
            await asyncio.sleep(pause)

    async def _once(self, kind: str, where: str) -> str:
        """Begins the tracker's process, feeds it to its end, and says why it has ended, or why it cannot be fed."""
        words = [sys.executable, "-m", "culm.trackers", kind, where, *self._about]
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=nowhere, stderr=pipe)
        self._processes[kind] = process
        feeding, ending = asyncio.create_task(self._feed(process)), asyncio.create_task(_last_line(process))
        try:
            await asyncio.wait((feeding, ending), return_when=asyncio.FIRST_COMPLETED)
            if feeding.done() and (error := feeding.exception()) is not None:
                # Its process would wait for ever. The next one is told all events again, so nothing is lost with it.
                log.error("%s can be told no more events", kind, exc_info=error)
                process.kill()
                await ending
                return told(f"its events cannot be read ({type(error).__name__}: {error})")
            return await ending
        finally:
            feeding.cancel()
            ending.cancel()
            await _closed(process)

    async def _feed(self, process: asyncio.subprocess.Process) -> None:
        """Writes events to the process, the ones before first. Its pipe holds it back where it is slow."""
        assert process.stdin is not None
        following = 1
        with suppress(ConnectionError):  # it has ended, which its keeper sees
            while True:
                events = self._events()
                grown = events.grown
                await events.whole.wait()
                for event in events.since(following):
                    process.stdin.write(f"{to_line(event)}\n".encode())
                    following = event.sequence + 1
                    await process.stdin.drain()
                await grown.wait()

    async def close(self) -> None:
        """Lets every process write what it was told; one that takes too long is ended."""
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()
        waiting = [asyncio.create_task(process.wait()) for process in self._processes.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=CLOSING_SECONDS)
        for kind, process in self._processes.items():
            if process.returncode is None:
                process.kill()
                await process.wait()
            if process.returncode:
                log.warning("%s has not all numbers of run %s", kind, self._run_id)


async def _closed(process: asyncio.subprocess.Process) -> None:
    """Lets go of the pipe to a process that has ended; what was in it is lost with that."""
    assert process.stdin is not None
    if process.returncode is not None:
        process.stdin.close()
        with suppress(ConnectionError):
            await process.stdin.wait_closed()


async def _last_line(process: asyncio.subprocess.Process) -> str:
    """Why the process has ended, once it has."""
    assert process.stderr is not None
    last = ""
    async for line in process.stderr:
        last = line.decode(errors="replace").strip() or last
    code = await process.wait()
    return told(last) or f"its process ended with exit code {code}"

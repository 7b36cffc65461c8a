"""The embedded Redis: a real redis-server on loopback that the launcher starts, and that ends with it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from culm.ports import free_port
from culm.redis_binary import RedisUnavailable, find_redis_server

# The port is free when it is chosen and may be taken when the server binds it; then another one is tried.
ATTEMPTS = 5
PAUSE_SECONDS = 0.005
STOP_SECONDS = 5.0

# Makes the server die with the process that started it, also by kill -9, then becomes the server under the same pid.
# Not a preexec_fn: that would run in a fork of a process full of gRPC and torch threads. Linux only; elsewhere stop()
# and a clean exit of the launcher end the server.
EXEC_TIED_TO_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the launcher has gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class PortTaken(Exception):
    """Somebody else took the port between its choice and its use."""


class EmbeddedRedis:
    """A Redis server of one run, as a context manager: entered, it answers; left, it is gone.

    It listens on 127.0.0.1 only, at a free port, and writes its log to `folder`/redis.log. With `durable` it keeps its
    data there, too, so that one that was killed comes back with all that it acknowledged; else nothing is on disk.
    `patience` is how many seconds it gets to answer the first PING. start() raises RedisUnavailable.
    """

    def __init__(
        self,
        folder: Path,
        patience: float = 10.0,
        choose_port: Callable[[], int] | None = None,
        durable: bool = False,
    ) -> None:
        self._folder = folder
        self._durable = durable
        self._patience = patience
        self._choose_port = choose_port or free_port
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """What redis.from_url takes, also after stop()."""
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        """The server's process. Raises RedisUnavailable when it was not started."""
        if self._process is None:
            raise RedisUnavailable("the embedded Redis is not started; call start() first")
        return self._process.pid

    def start(self) -> Self:
        """Starts the server and waits until it answers."""
        server = find_redis_server()
        self._folder.mkdir(parents=True, exist_ok=True)
        for _ in range(ATTEMPTS):
            self._port = self._choose_port()
            self._process = self._launch(server)
            try:
                self._await_pong(self._process)
                return self
            except PortTaken:
                self.stop()
            except BaseException:
                self.stop()
                raise
        raise RedisUnavailable(f"{server} found no free port on 127.0.0.1 in {ATTEMPTS} attempts; see {self._log}")

    def restart(self) -> None:
        """Starts the server again at the same port, where its clients look for it. Raises RedisUnavailable."""
        self.stop()
        self._process = self._launch(find_redis_server())
        self._await_pong(self._process)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ends the server and waits until it is gone. Harmless when it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self._folder / "redis.log"

    def _launch(self, server: Path) -> subprocess.Popen[bytes]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self._port),
            "save": "",
            "appendonly": "yes" if self._durable else "no",
            "daemonize": "no",
            "dir": str(self._folder),
        }
        flags = [part for name, value in options.items() for part in (f"--{name}", value)]
        tied = [sys.executable, "-I", "-S", "-c", EXEC_TIED_TO_PARENT, str(os.getpid())]
        # A session of its own: Ctrl-C in the terminal ends the launcher, which then ends the server in its own time.
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*tied, str(server), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await_pong(self, process: subprocess.Popen[bytes]) -> None:
        """Returns when this very server answers; raises PortTaken or RedisUnavailable when it will not."""
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            answering = self._answering_pid()
            if answering == process.pid:
                return
            if answering is not None:
                raise PortTaken
            try:
                # Waits for the next attempt, and notices at once when the server ends.
                code = process.wait(PAUSE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            said = self._log.read_text(encoding="utf-8", errors="replace").strip()
            if "in use" in said:
                raise PortTaken
            raise RedisUnavailable(f"{process.args!r} ended with code {code}: {said[-500:]}; see {self._log}")
        raise RedisUnavailable(
            f"the embedded Redis did not answer within {self._patience:g} s; see {self._log}, "
            "or name a running Redis with --redis URL"
        )

    def _answering_pid(self) -> int | None:
        """The process id of the Redis that answers at the port, or None while nobody does."""
        with Redis(
            port=self._port,
            host="127.0.0.1",
            socket_timeout=1.0,
            socket_connect_timeout=1.0,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            try:
                client.ping()
                return int(client.info("server")["process_id"])
            except RedisError:
                return None

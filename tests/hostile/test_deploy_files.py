"""What deploy/ ships starts: SkyPilot's shell lines train a job, and the Redis that is set up wants its password."""

import base64
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError

from culm.local.authority import INITIAL, issue, make_authority
from culm.local.ports import free_port
from culm.local.redis_binary import find_redis_server
from culm.local.redis_server import EmbeddedRedis
from culm.protos import coordinator_pb2 as pb
from culm.terminal.client import connect

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SKY = DEPLOY / "skypilot"


def task(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((SKY / f"{name}.yaml").read_text())
    return found


@contextmanager
def shell(script: str, folder: Path, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs it as a cloud's machine does, until left; then it and what it started is ended."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended, and what it started as well
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with ~/culm-certs, as the page beside SkyPilot's files has it made."""
    certificates = tmp_path / "culm-certs"
    make_authority(certificates)
    for role in INITIAL:
        issue(certificates, role, role, 1.0)
    return tmp_path


def machine(home: Path, name: str) -> tuple[Path, dict[str, str], str]:
    """A machine with what the task says that it gets: its home, its environment, its script. Ports are free ones."""
    told = task(name)
    (home / name).mkdir(exist_ok=True)
    for target, source in told.get("file_mounts", {}).items():
        local = source.replace("${CULM_JOB}", told["envs"]["CULM_JOB"])
        shutil.copy(ROOT / local, home / name / target.removeprefix("~/"))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CULM_")}
    files = {"CA_CRT": "ca.crt", "TLS_CRT": "tls.crt", "TLS_KEY": "tls.key"}
    secrets = {
        secret: base64.b64encode((home / "culm-certs" / name / file).read_bytes()).decode()
        for secret, file in files.items()
    }
    assert set(told["secrets"]) - {"REDIS_PASSWORD"} == set(secrets)
    environment = {**kept, **told["envs"], **secrets, "HOME": str(home / name)}
    environment["SKYPILOT_CLUSTER_INFO"] = '{"zone": null}'
    script: str = told["run"].replace(":7071", ":0").replace("0.0.0.0:9464", "127.0.0.1:0")
    return home / name, environment, script


@pytest.mark.slow
def test_skypilots_files_as_shipped_train_their_job(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis(home))
        own, environment, script = machine(home, "coordinator")
        (own / "culm-redis-url").write_text(redis.url + "\n")
        script = script.replace(":7070", f":{port}")
        stack.enter_context(shell(script, ROOT, environment, home / "coordinator.log"))
        nodes = []
        for i in range(3):
            own, environment, script = machine(home, "stage")
            script = script.replace("CULM_ADVERTISE", "NOT_USED")  # which would name a port of the machine's own
            here = {
                **environment,
                "CULM_NAME": f"n{i}",
                "CULM_COORDINATOR": f"127.0.0.1:{port}",
                "CULM_NOTICES": "none",
            }
            nodes.append(stack.enter_context(shell(script, ROOT, here, home / f"n{i}.log")))
        monkeypatch.setenv("CULM_TLS_DIR", str(home / "culm-certs" / "operator"))
        try:
            channel, stub = connect(f"127.0.0.1:{port}", patience=60.0)
            with channel:
                for event in stub.ListEvents(pb.ListEventsRequest(follow=True)):
                    if event.kind == "done":
                        break
            words = [sys.executable, "-m", "culm", "weights", "--coordinator", f"127.0.0.1:{port}"]
            subprocess.run([*words, "--out", str(home / "model.safetensors")], cwd=ROOT, check=True, timeout=120)
            # Their run is over: the managed jobs end, and SkyPilot gives their machines back.
            assert [node.wait(timeout=120) for node in nodes] == [0, 0, 0]
        except BaseException:
            print("\n".join(log.read_text()[-2000:] for log in home.glob("*.log")))
            raise
    assert stat.S_IMODE((home / "stage" / "culm-tls" / "tls.key").stat().st_mode) == 0o600


def test_a_url_of_redis_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "culm",
        "coordinator",
        "--job",
        "examples/digits_mlp.toml",
        "--listen",
        "127.0.0.1:0",
    ]
    environment = {**os.environ, "CULM_REDIS_URL_FILE": str(tmp_path / "nowhere")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    (line,) = done.stderr.strip().split("\n")
    assert "write the URL of Redis into that file" in line


@pytest.mark.parametrize("where", ["vm", "skypilot"])
def test_the_redis_that_is_set_up_wants_its_password_and_keeps_to_loopback(where: str, tmp_path: Path) -> None:
    configuration, url_file = tmp_path / "redis.conf", tmp_path / "url"
    configuration.write_text("# as Debian ships it\nbind * -::*\nappendonly no\n")
    if where == "vm":
        config = yaml.safe_load((DEPLOY / "vm" / "cloud-init-coordinator.yaml").read_text())
        script = next(f["content"] for f in config["write_files"] if f["path"] == "/usr/local/bin/culm-redis")
    else:
        begin, end = "if ! test", "\nfi"
        setup = task("coordinator")["setup"]
        script = setup[setup.index(begin) : setup.index(end) + len(end)]
        script = script.replace("/etc/redis/redis.conf", '"$1"').replace("~/culm-redis-url", '"$2"')
        script = script.replace("sudo tee", "tee").replace("sudo ", ": ")
        script = f"REDIS_PASSWORD=of-a-secret\n{script}"
    subprocess.run(["sh", "-eu", "-c", script, "sh", str(configuration), str(url_file)], check=True)
    port = free_port()
    url = url_file.read_text().strip().removeprefix("CULM_REDIS_URL=").replace(":6379", f":{port}")
    command = [str(find_redis_server()), str(configuration), "--port", str(port), "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        client = Redis.from_url(url)
        while True:
            try:
                assert client.ping()
                break
            except RedisConnectionError:
                assert server.poll() is None
        assert client.config_get("bind")["bind"] == "127.0.0.1 -::1"
        assert client.config_get("appendonly")["appendonly"] == "yes"
        with pytest.raises(AuthenticationError):
            Redis(port=port).ping()
        client.close()
    finally:
        server.kill()
        server.wait()

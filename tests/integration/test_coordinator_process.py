"""The coordinator as a process: it says where it listens, stops when it is told to, and leads only with its lease."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from redis import Redis

from culm.local.redis_server import EmbeddedRedis
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from tests.fake_node import FakeNode

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "digits_mlp.toml"
DEADLINE_SECONDS = 60.0  # ends a test that hangs; no test waits for it
SERVE = """
import logging, os, sys
from culm.coordinator.edges.service import main
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.pipeline.job import load_job
logging.basicConfig(level="INFO", stream=sys.stderr)
job, listen, redis_url = sys.argv[1:]
sys.exit(main(CoordinatorSettings(job=load_job(job), listen=listen, redis_url=redis_url, name=str(os.getpid()))))
"""


def command(redis: EmbeddedRedis, listen: str = "127.0.0.1:0", job: Path = EXAMPLE) -> list[str]:
    return [sys.executable, "-c", SERVE, str(job), listen, redis.url]


@pytest.fixture
def server(tmp_path: Path) -> EmbeddedRedis:
    return EmbeddedRedis(tmp_path)


def start(words: list[str]) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env=environment)


def address_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("culm coordinator listening on 127.0.0.1:")
    return line.split()[-1]


def finish(process: "subprocess.Popen[str]") -> int:
    """Asks it to stop; its exit code."""
    process.send_signal(signal.SIGTERM)
    return ended(process)


def ended(process: "subprocess.Popen[str]") -> int:
    """The exit code of one that was asked to stop: a second signal would meet it on its way out."""
    logged(process)
    return process.returncode


def logged(process: "subprocess.Popen[str]") -> str:
    """What one that was asked to stop had to log."""
    try:
        return process.communicate(timeout=DEADLINE_SECONDS)[1]
    finally:
        process.kill()


def test_told_to_stop_it_tells_its_nodes_nothing(server: EmbeddedRedis) -> None:
    async def farewell(process: "subprocess.Popen[str]", address: str) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), grpc.aio.insecure_channel(address) as channel:
            node = FakeNode("n0", CoordinatorStub(channel).Attend())
            await node.say(join=pb.Join(node="n0", incarnation=1, protocol_version=PROTOCOL_VERSION))
            await node.hear("welcome")
            process.send_signal(signal.SIGTERM)
            assert await node.ended(), "a stop is not an end (rule 17): the node waits for the next coordinator"

    with server:
        process = start(command(server))
        try:
            asyncio.run(farewell(process, address_of(process)))
        finally:
            code = ended(process)
        assert code == 0


@pytest.mark.parametrize("saves", [False, True])
def test_a_run_that_could_lose_everything_is_said_to(server: EmbeddedRedis, tmp_path: Path, saves: bool) -> None:
    job = tmp_path / "job.toml"
    section = f'[checkpoint]\nurl = "file://{tmp_path}/checkpoints"\nevery = 10\n'
    job.write_text(EXAMPLE.read_text() + (section if saves else ""))
    with server:
        process = start(command(server, job=job))
        try:
            address_of(process)
        finally:
            process.send_signal(signal.SIGTERM)
            said = logged(process)
    assert ("no [checkpoint] url" in said) != saves


def test_a_port_in_use_is_one_line_and_exit_code_2(server: EmbeddedRedis) -> None:
    with server:
        process = start(command(server))
        try:
            address = address_of(process)
            second = subprocess.run(command(server, address), cwd=ROOT, capture_output=True, text=True)
        finally:
            finish(process)
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr == (
        f"culm coordinator: cannot listen on {address}: port in use; choose another with --listen\n"
    )


def test_one_that_waits_for_the_lease_says_so_and_can_be_stopped(server: EmbeddedRedis) -> None:
    with server:
        leader = start(command(server))
        try:
            address_of(leader)
            waiting = start(command(server))
            assert waiting.stderr is not None
            assert any("waiting for its lease to end" in line for line in waiting.stderr)
            assert finish(waiting) == 0
        finally:
            finish(leader)


def test_a_leader_that_lost_its_lease_steps_down(server: EmbeddedRedis) -> None:
    with server:
        process = start(command(server))
        try:
            address_of(process)
            with Redis.from_url(server.url) as client:
                client.incr("culm:culm:term")
                client.set("culm:culm:leader", "another:2")
            _, said = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 1
    assert said.splitlines()[-1] == (
        "culm coordinator: another coordinator leads with a higher term; this one steps down"
    )

"""``docker compose up`` on a real engine: containers are killed, Redis stops, and not a bit changes.

Needs DOCKER_HOST, or an engine where docker looks for one, and the images: ``make compose`` builds them.
"""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 160
FILES = ("-f", str(ROOT / "docker-compose.yml"), "-f", str(ROOT / "tests/compose/short.yml"))
SERVICES = ("redis", "coordinator", "stage", "ui")
UI_PORT = 18501
CHANGES = (f"job.steps={STEPS}", "model.args.width=96", "model.args.depth=6")


def docker(*words: str, timeout: float = 300.0) -> str:
    environment = {**os.environ, "STEPS": str(STEPS), "CULM_UI_PORT": str(UI_PORT)}
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=timeout, env=environment)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr}"
    return done.stdout


def compose(*words: str, timeout: float = 300.0) -> str:
    return docker("compose", "--project-name", "culm-test", *FILES, *words, timeout=timeout)


@pytest.fixture
def cluster() -> Iterator[None]:
    try:
        docker("image", "inspect", "culm/coordinator", "culm/stage", "culm/ui", "redis:7-alpine")
    except (AssertionError, FileNotFoundError) as error:
        pytest.skip(f"no engine with the images: {error}")
    try:
        compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "120", *SERVICES)
        yield
    finally:
        compose("down", "--volumes", "--timeout", "1")


def status() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(compose("exec", "-T", "coordinator", "culm", "status", "--json"))
    return told


def until(what: Callable[[dict[str, Any]], bool], seconds: float = 600.0) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while not what(told := status()):
        assert time.monotonic() < deadline, f"still {told}"
        time.sleep(0.5)
    return told


def owner_of(stage: int, told: dict[str, Any]) -> str:
    """The container of the node that owns the stage: nodes are named after their containers."""
    (node,) = (n["id"] for n in told["nodes"] if stage in n["stages"])
    return str(node)


def weights() -> str:
    words = ("run", "--rm", "--no-deps", "--no-TTY", "stage", "weights", "--json")
    told: dict[str, str] = json.loads(compose(*words).strip().split("\n")[-1])
    return told["weights_sha256"]


def plain_weights() -> str:
    """Of a plain loop in the same image: the text that the example learns is its Python's own standard library."""
    code = "from culm.plain_loop import run_plain as p; from pipeline.job import load_job as l; "
    code += f"print(p(l('examples/stdlib_gpt.toml', {list(CHANGES)!r})).sha256)"
    words = ("run", "--rm", "--no-deps", "--no-TTY", "--entrypoint", "python3", "stage", "-c", code)
    return compose(*words).strip().split("\n")[-1]


def test_containers_are_killed_and_redis_stops_and_not_a_bit_changes(cluster: None) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{UI_PORT}/_stcore/health", timeout=30) as answer:
        assert answer.read() == b"ok"
    safe = {"0": 0.0, "1": 0.0, "2": 0.0, "3": 0.0}
    for kill, stage in enumerate((1, 0, 3)):
        told = until(lambda s, due=5 + 15 * kill: s["step"] >= due and s["exposure"] == safe)  # type: ignore[misc]
        lost = owner_of(stage, told)
        docker("kill", lost)
        until(lambda s, lost=lost: lost not in {n["id"] for n in s["nodes"]})  # type: ignore[misc]
        docker("start", lost)  # as an orchestrator would
        if kill == 0:
            compose("up", "--detach", "--no-build", "--no-recreate", "--scale", "stage=6", "stage")
            until(lambda s: len(s["nodes"]) == 6)
        if kill == 1:
            compose("stop", "redis")
            stopped_at = status()["step"]
            until(lambda s, past=stopped_at: s["step"] >= past + 8)  # type: ignore[misc]
            compose("start", "redis")
    until(lambda s: bool(s["phase"] == "done"))
    kinds = [
        json.loads(line)["kind"]
        for line in compose("exec", "-T", "coordinator", "culm", "events", "--json").split("\n")
        if line
    ]
    assert kinds.count("lost") == 3
    assert "rollback" not in kinds
    assert weights() == plain_weights()

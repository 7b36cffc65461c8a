"""A whole cluster is stopped, restarted and robbed of its memory on a real engine: it goes on, and no bit changes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.engine import IMAGES, EngineError, Project, docker

HERE = Path(__file__).parent
STEPS = 240  # so many that the run still goes on where a busy machine takes long to restart and stop
SAFE = {str(stage): 0.0 for stage in range(4)}
EMPTY = ("run", "--rm", "--no-deps", "--no-TTY", "--entrypoint", "sh", "redis", "-c", "rm -rf /data/*")


@pytest.fixture
def cluster() -> Iterator[Project]:
    try:
        docker("image", "inspect", *IMAGES)
    except (EngineError, FileNotFoundError) as error:
        pytest.skip(f"no engine with the images: {error}")
    project = Project("culm-restarts", [HERE / "chaos.yml"], {"STEPS": str(STEPS), "CULM_UI_PORT": "18503"})
    try:
        project.begin("redis", "coordinator", "stage")
        yield project
    finally:
        project.down()


def timed(cluster: Project, *words: str) -> None:
    began = time.monotonic()
    cluster.compose(*words)
    print(f"docker compose {' '.join(words)} took {time.monotonic() - began:.1f} s", flush=True)


def up(cluster: Project) -> None:
    timed(cluster, "up", "--detach", "--no-build", "--no-recreate", "redis", "coordinator", "stage")


def kinds(cluster: Project) -> list[str]:
    return [event["kind"] for event in cluster.events()]


def goes_on(cluster: Project, past: int) -> dict[str, Any]:
    return cluster.until(lambda s: s["step"] >= past and s["exposure"] == SAFE)


def test_a_cluster_that_is_stopped_or_forgotten_goes_on_from_its_checkpoint(cluster: Project) -> None:
    goes_on(cluster, 5)
    for service in ("coordinator", "redis"):
        past = cluster.status()["step"]
        timed(cluster, "restart", service)
        goes_on(cluster, past + 3)
    assert not {"rollback", "lost"} & set(kinds(cluster))

    stopped = cluster.status()["step"]
    timed(cluster, "stop")
    up(cluster)
    told = cluster.until(lambda s: s["phase"] != "waiting")
    assert told["step"] >= stopped, "every node was told to stop: a last checkpoint was written first"

    cluster.until(lambda s: s["step"] >= stopped + 25)
    saved = max(cluster.checkpoints())
    timed(cluster, "kill", "coordinator", "stage", "redis")
    cluster.compose(*EMPTY)
    up(cluster)
    told = cluster.until(lambda s: s["phase"] != "waiting")
    assert told["step"] >= saved > 0
    assert "rollback" not in kinds(cluster)

    cluster.until(lambda s: bool(s["phase"] == "done"))
    for service in ("coordinator", "redis"):
        timed(cluster, "restart", service)
        cluster.until(lambda s: bool(s["phase"] == "done"))
    done = json.dumps(cluster.status()["detail"])
    print(f"done: {done}")
    began = time.monotonic()
    while cluster.running("stage"):
        assert time.monotonic() - began < 600.0, "the nodes of a run that is done stay"
        time.sleep(0.5)
    print(f"the nodes had ended after {time.monotonic() - began:.1f} s")
    assert cluster.ended("stage") == cluster.containers("stage")
    timed(cluster, "restart", "coordinator")
    cluster.until(lambda s: bool(s["phase"] == "done"))
    changes = [f"job.steps={STEPS}", "model.args.forward=0", "model.args.backward=0"]
    plain = cluster.plain_weights("/chaos.toml", changes)
    assert cluster.saved_weights(STEPS) == plain
    assert cluster.weights() == plain, "culm weights, from another container, when no node is left"

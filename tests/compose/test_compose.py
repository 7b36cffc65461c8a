"""``docker compose up`` on a real engine: containers are killed, Redis stops, and not a bit changes.

Needs DOCKER_HOST, or an engine where docker looks for one, and the images: ``make compose`` builds them.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.engine import IMAGES, EngineError, Project, docker

STEPS = 240  # so many that the run still goes on where a busy machine takes long to kill, start and stop
UI_PORT = 18501
CHANGES = (f"job.steps={STEPS}", "model.args.width=96", "model.args.depth=6")
SAFE = {"0": 0.0, "1": 0.0, "2": 0.0, "3": 0.0}
ONE_PIPELINE, GRID = "examples/stdlib_gpt.toml", "examples/stdlib_gpt_grid.toml"
GRAPH, GRAPH_CHANGES = "examples/blocks.toml", ("graph.args.vertices=20000",)
EPOCHS = 1000  # as with STEPS, but an epoch takes a tenth of a second
HERE = Path(__file__).parent


@pytest.fixture(params=[ONE_PIPELINE])
def cluster(request: pytest.FixtureRequest) -> Iterator[Project]:
    try:
        docker("image", "inspect", *IMAGES)
    except (EngineError, FileNotFoundError) as error:
        pytest.skip(f"no engine with the images: {error}")
    environment = {"STEPS": str(STEPS), "CULM_UI_PORT": str(UI_PORT), "CULM_JOB": request.param}
    project = Project("culm-test", [HERE / "short.yml"], environment)
    try:
        project.begin("redis", "coordinator", "stage", "ui")
        yield project
    finally:
        project.down()


@pytest.fixture
def graph() -> Iterator[Project]:
    """The profile graph: servers, and tensor workers beside them."""
    try:
        docker("image", "inspect", *IMAGES)
    except (EngineError, FileNotFoundError) as error:
        pytest.skip(f"no engine with the images: {error}")
    project = Project("culm-graph", [HERE / "graph.yml"], {"STEPS": str(EPOCHS), "CULM_JOB": GRAPH, "CULM_NODES": "2"})
    try:
        project.begin("redis", "coordinator", "stage", "tensor-worker")
        yield project
    finally:
        project.down()


def owner_of(stage: int, told: dict[str, Any]) -> str:
    """The container of the node that owns the stage: nodes are named after their containers."""
    (node,) = (n["id"] for n in told["nodes"] if stage in n["stages"])
    return str(node)


def inside(container: str, script: str) -> str:
    return docker("exec", container, "sh", "-c", script)


def test_containers_are_killed_and_redis_stops_and_not_a_bit_changes(cluster: Project) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{UI_PORT}/_stcore/health", timeout=30) as answer:
        assert answer.read() == b"ok"
    assert "external IP" not in cluster.compose("logs", "ui"), "it asked another site for this machine's address"
    for kill, stage in enumerate((1, 0, 3)):
        told = cluster.until(lambda s, due=5 + 15 * kill: s["step"] >= due and s["exposure"] == SAFE)  # type: ignore[misc]
        lost = owner_of(stage, told)
        docker("kill", lost)
        cluster.until(lambda s, lost=lost: lost not in {n["id"] for n in s["nodes"]})  # type: ignore[misc]
        docker("start", lost)  # as an orchestrator would
        if kill == 0:
            cluster.compose("up", "--detach", "--no-build", "--no-recreate", "--scale", "stage=6", "stage")
            cluster.until(lambda s: len(s["nodes"]) == 6)
        if kill == 1:
            cluster.compose("stop", "redis")
            stopped_at = cluster.status()["step"]
            cluster.until(lambda s, past=stopped_at: s["step"] >= past + 8)  # type: ignore[misc]
            cluster.compose("start", "redis")
    cluster.until(lambda s: bool(s["phase"] == "done"))
    kinds = [event["kind"] for event in cluster.events()]
    assert kinds.count("lost") == 3
    assert "rollback" not in kinds
    assert cluster.weights() == cluster.plain_weights(ONE_PIPELINE, CHANGES)


@pytest.mark.parametrize("cluster", [GRID], indirect=True)
def test_owners_of_a_grid_are_killed_and_not_a_bit_changes(cluster: Project) -> None:
    """The job that ``docker compose up`` runs: peers take each other's pipelines over."""
    for kill in range(3):
        told = cluster.until(lambda s, due=5 + 15 * kill: s["step"] >= due and set(s["exposure"].values()) == {0.0})  # type: ignore[misc]
        lost = [n["id"] for n in told["nodes"] if kill % 2 in n["stages"]][-1]
        docker("kill", lost)
        cluster.until(lambda s, lost=lost: lost not in {n["id"] for n in s["nodes"]})  # type: ignore[misc]
        docker("start", lost)
    cluster.until(lambda s: bool(s["phase"] == "done"))
    kinds = [event["kind"] for event in cluster.events()]
    assert kinds.count("lost") == 3
    assert "rollback" not in kinds
    assert cluster.weights() == cluster.plain_weights(GRID, CHANGES)


def test_workers_and_a_server_of_a_graph_are_killed_and_not_a_bit_changes(graph: Project) -> None:
    def workers(told: dict[str, Any]) -> list[int]:
        return [node["tensor_work"]["workers"] for node in told["nodes"] if node["tensor_work"]]

    graph.until(lambda s: s["step"] >= 5 and workers(s) == [2, 2])
    lost = graph.containers("tensor-worker")[0]
    docker("kill", lost)
    graph.until(lambda s: workers(s) == [1, 1])
    docker("start", lost)
    told = graph.until(lambda s: workers(s) == [2, 2])
    server = next(n["id"] for n in told["nodes"] if n["stages"])
    docker("kill", server)
    graph.until(lambda s: server not in {n["id"] for n in s["nodes"]})
    docker("start", server)
    graph.until(lambda s: bool(s["phase"] == "done"))
    assert [event["kind"] for event in graph.events()].count("lost") == 1
    assert graph.weights() == graph.plain_weights(GRAPH, (f"job.steps={EPOCHS}", *GRAPH_CHANGES))


def test_a_node_that_dies_comes_back_by_itself_and_nobody_sees_more_than_it_must(cluster: Project) -> None:
    """As the page's button has it: the node kills its own process. It would survive that as PID 1."""
    told = cluster.until(lambda s: s["step"] >= 2 and s["exposure"] == SAFE)
    preempted = next(n for n in told["nodes"] if n["stages"])
    code = f"from culm.ui.source import Live; print(Live('coordinator:7070').kill({preempted['id']!r}))"
    assert "is preempted" in cluster.compose("exec", "-T", "ui", "python3", "-c", code)
    cluster.until(lambda s: [e["kind"] for e in cluster.events()].count("lost") == 1)
    cluster.until(lambda s: len([n for n in s["nodes"] if n["state"] in ("active", "spare")]) == 5)
    assert docker("inspect", "--format", "{{.RestartCount}}", preempted["id"]).strip() == "1"

    (coordinator,), stages, (redis,) = (cluster.containers(s) for s in ("coordinator", "stage", "redis"))
    for container in (coordinator, *stages, redis):
        assert "ca.key" not in inside(container, "find / -name ca.key 2>/dev/null; true")
        told_mounts = json.loads(docker("inspect", "--format", "{{json .Mounts}}", container))
        assert len([m for m in told_mounts if m["Destination"] == "/tls" and not m["RW"]]) == 1
    password = inside(redis, "cat /tls/password").strip()
    cli = "redis-cli --tls --cacert /tls/ca.crt"
    assert "NOAUTH" in inside(redis, f"{cli} ping")
    assert "PONG" in inside(redis, f"REDISCLI_AUTH={password} {cli} ping")
    leader = inside(redis, f"REDISCLI_AUTH={password} {cli} get culm:culm:leader")
    assert leader.startswith(f"{coordinator}:"), "the coordinator is called as docker ps calls it"
    assert password not in docker("inspect", coordinator)
    find_redis = "import socket; socket.getaddrinfo('redis', 6379)"
    with pytest.raises(EngineError, match="gaierror"):
        docker("exec", stages[0], "python3", "-c", find_redis)

"""``deploy/kubernetes``: each container's command line, with what its manifest gives it and nothing else.

As root, with Debian's redis-server, which knows TLS, and curl: ``make machines``.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from culm.local.authority import INITIAL, issue, make_authority
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from tests.machines.container import is_root
from tests.machines.network import Network
from tests.machines.pods import Pod, Secrets, until
from tests.unit.deployed import KUBERNETES, container

REDIS = Path("/usr/bin/redis-server")
STAGES = [f"culm-stage-{i}" for i in range(4)]
SERVICES = ["culm-redis", "culm-coordinator", "culm-ui"]

pytestmark = [
    pytest.mark.skipif(not is_root(), reason="namespaces are root's to make"),
    pytest.mark.skipif(not REDIS.exists(), reason="there is no Debian's redis-server, which knows TLS"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl, which asks as a probe does"),
]


def secrets(folder: Path, job: bytes) -> Secrets:
    """As the page's step 4 makes them, and the job of step 3."""
    make_authority(folder)
    made: dict[str, dict[str, bytes]] = {"culm-redis": {"password": b"of-a-secret"}, "culm-job": {"job.toml": job}}
    for role in INITIAL:
        own = issue(folder, role, role, 1.0)
        made[f"culm-tls-{role}"] = {file.name: file.read_bytes() for file in own.iterdir()}
    return made


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[dict[str, Pod]]:
    tmp_path.chmod(0o755)
    text = (KUBERNETES / "job.toml").read_text()
    job = text.replace("\nsteps = 60\n", "\nsteps = 1500\n").encode()
    assert job != text.encode()
    (tmp_path / "job.toml").write_bytes(job)
    with ExitStack() as stack:
        network = stack.enter_context(Network([*SERVICES, *STAGES], tmp_path))
        given = secrets(tmp_path / "certs", job)
        hosts = "127.0.0.1 localhost\n" + "".join(f"{network.address(name)} {name}\n" for name in SERVICES)
        made: dict[str, Pod] = {}
        for name in (*SERVICES, *STAGES):
            of = "culm-stage" if name in STAGES else name
            made[name] = Pod(network, name, of, tmp_path, given, hosts)
            stack.callback(made[name].close)
        yield made


def test_containers_start_are_ready_and_end_in_their_grace(pods: dict[str, Pod], tmp_path: Path) -> None:
    """All are started at once, as Kubernetes does: none waits for another. The run ends with the plain loop's bits."""
    everybody = list(pods.values())
    for pod in everybody:
        pod.start()
    for name, pod in pods.items():
        own = container("culm-stage" if name in STAGES else name)
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if kind in own:
                until(f"{name}'s {kind}", partial(pod.passes, kind), everybody)
        assert not pod.writes("/etc/a-file")
        assert pod.writes("/tmp/a-file")
    coordinator, *stages = (pods[name] for name in ("culm-coordinator", *STAGES))

    def status() -> str:
        return coordinator.culm("status", "--json")

    def is_active(stage: Pod) -> bool:
        found = re.search(rf'"id": "{stage.name}"[^}}]*?"state": "(\w+)"', status())
        return found is not None and found[1] in ("active", "spare")

    for stage in stages:
        until(f"{stage.name} to have joined", partial(is_active, stage), everybody)
    assert stages[0].terminate() == 0
    events = coordinator.culm("events")
    assert f"{stages[0].name} has left: drained" in events
    coordinator.kill()
    until("the coordinator to end", lambda: coordinator.has_ended, stages[1:])
    coordinator.start()
    left = [pods["culm-redis"], pods["culm-ui"], coordinator, *stages[1:]]
    until("the coordinator to lead", lambda: coordinator.passes("readinessProbe"), left)
    until("the end", lambda: '"phase": "done"' in status(), left)
    told = pods["culm-ui"].culm("weights", "--out", "/tmp/weights")  # an operator's certificate is there
    (sha256,) = re.findall(r"\b[0-9a-f]{64}\b", told)
    assert sha256 == run_plain(load_job(tmp_path / "job.toml", [])).sha256
    assert pods["culm-ui"].terminate() in (0, -15)
    assert coordinator.terminate() == 0
    assert pods["culm-redis"].terminate() == 0

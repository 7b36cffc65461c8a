"""``deploy/vm`` as its page has it set up: each machine has only its own files, and each service dies once.

As root: ``make machines``.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from culm.local.authority import INITIAL, issue, make_authority
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, job_to_toml, load_job
from tests.hostile.paced import HOLD
from tests.machines.container import ROOT, is_root
from tests.machines.network import Network
from tests.machines.operator import OPERATOR, Operator
from tests.machines.vm import Machine, raised_version, user_data

pytestmark = pytest.mark.skipif(not is_root(), reason="namespaces are root's to make")

COORDINATOR = "coordinator"
CLOUDS = {"n0": "aws", "n1": "gcp", "n2": "azure", "n3": ""}
NEWER = "99.0.0"


def job() -> Job:
    """Slow for as long as the test holds it: the machines have gone and come back by its end."""
    words = ["model.layers=tests.hostile.paced:layers", "model.args={}", "data.dataset=tests.hostile.paced:dataset"]
    return load_job(ROOT / "examples" / "digits_mlp.toml", [*words, "job.steps=4000", "job.keep_after_done=600"])


class Deployed:
    """The machines of the page, and the operator's."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        folder.chmod(0o755)
        self.network = stack.enter_context(Network([COORDINATOR, *CLOUDS, OPERATOR], folder))
        certificates = folder / "certs"
        make_authority(certificates)
        for role in INITIAL:
            issue(certificates, role, role, 1.0)
        held = folder / "held"
        held.mkdir()
        self.hold = held / "hold"
        self.hold.touch()
        codes = {"latest": ROOT, "next": raised_version(folder / "next", NEWER)}
        given = {HOLD: "/hold/hold"}
        self.machines = {n: Machine(self.network, n, folder, codes, given, held) for n in (COORDINATOR, *CLOUDS)}
        for machine in self.machines.values():
            stack.callback(machine.close)
        self.coordinator = self.machines[COORDINATOR]
        at = self.network.address(COORDINATOR)
        self.operator = Operator(self.network, certificates, f"{at}:7070", folder, self._tend)
        stack.callback(self.operator.close)
        self.coordinator.cloud_init(user_data("coordinator", certificates, job=job_to_toml(job())))
        self.coordinator.restart_redis()
        self.coordinator.start()
        for name, cloud in CLOUDS.items():
            machine = self.machines[name]
            if cloud:
                machine.in_cloud(cloud)
                self.operator.until("the cloud", machine.has_cloud)
            machine.cloud_init(user_data("stage", certificates, coordinator=at))
            machine.start()
        self.operator.until("the coordinator", lambda: "listening on" in self.coordinator.log("service"))
        self.operator.watch()

    def _tend(self) -> list[str]:
        for machine in self.machines.values():
            machine.tend()
        return [f"{machine.name}'s {name}" for machine in self.machines.values() for name in machine.broken]

    def until_joined(self, node: str, times: int) -> None:
        self.operator.until(f"{node} to join", lambda: self.operator.times("joined", node) >= times)

    def story(self) -> str:
        logs = {n: machine.log("service").splitlines()[-30:] for n, machine in self.machines.items()}
        return "\n".join(line for name, lines in logs.items() for line in (f"--- {name}", *lines))


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    with ExitStack() as stack:
        made = Deployed(stack, tmp_path)
        yield made


def test_each_service_dies_is_upgraded_or_cut_off_and_the_bits_stay(deployed: Deployed) -> None:
    operator, machines, coordinator = deployed.operator, deployed.machines, deployed.coordinator
    operator.until("the first steps", lambda: operator.step() >= 5)
    try:
        lives = dict.fromkeys(CLOUDS, 1)
        for name, cloud in CLOUDS.items():
            deployed.until_joined(name, 1)
            if cloud:  # it is told to go, hands over, and stays down; another machine comes in its place
                machines[name].notice()
                operator.until(f"{name} to go", machines[name].is_down)
                assert operator.times("left", name) == 1
                (told,) = (e for e in operator.events("draining") if e["node"] == name)
                assert any(f"{left} s are left" in told["text"] for left in range(110, 121)), told["text"]
                assert operator.times("lost", name) == 0
                machines[name].forget_the_cloud()
                machines[name].start()
                lives[name] += 1
                deployed.until_joined(name, lives[name])
        machines["n3"].kill()
        operator.until("n3 to be lost", lambda: operator.times("lost", "n3") == 1)
        deployed.until_joined("n3", 2)
        coordinator.kill()
        operator.until("the nodes to be back", lambda: len(operator.events("recovered_coordinator")) == 1)
        coordinator.restart_redis()
        operator.until_it_goes_on()
        machines["n0"].restart()
        deployed.until_joined("n0", 3)
        deployed.network.cut("n1")
        operator.until("n1 to be lost", lambda: operator.times("lost", "n1") == 1)
        coordinator.upgrade("next")
        operator.until("the nodes to be back", lambda: len(operator.events("recovered_coordinator")) == 2)
        for number, name in enumerate(("n2", "n3", "n0")):
            machines[name].upgrade("next")
            deployed.until_joined(name, (3, 3, 4)[number])
            operator.until_it_goes_on()
        deployed.network.heal("n1")
        deployed.until_joined("n1", 3)
        operator.until_it_goes_on()
        deployed.hold.unlink()
        operator.until("the end", lambda: bool(operator.events("done")))
        assert operator.weights_sha256() == run_plain(job()).sha256
    except BaseException:
        print(deployed.story())
        raise

"""Random messages that are nearly right go to both services while they train: no bit changes, nothing grows."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from culm.local.authority import INITIAL, issue, make_authority
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from tests.hostile.fuzzer import Fuzzer
from tests.hostile.paced import HOLD

SOAK = os.environ.get("CULM_SOAK") == "1"
MESSAGES = int(os.environ.get("CULM_FUZZ_MESSAGES") or (100_000 if SOAK else 300))  # to each service
STEPS = max(100, MESSAGES // 30)
SEED = 22
MEGABYTES = 50

JOB = """
[job]
name = "fuzzed"
steps = 100
[model]
layers = "tests.hostile.paced:layers"
[data]
dataset = "tests.hostile.paced:dataset"
microbatch = 4
[train]
loss = "torch.nn.functional:cross_entropy"
optimizer = "torch.optim:SGD"
optimizer_args = { lr = 0.05, momentum = 0.9 }
clip_norm = 1.0
[pipeline]
stages = 2
microbatches = 4
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return load_job(path, [f"job.steps={STEPS}"])


@pytest.fixture(params=["plain", "tls"])
def environments(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, str]]:
    """With TLS this process is an operator, and the fuzzer holds a stage's certificate too."""
    if request.param == "plain":
        monkeypatch.delenv("CULM_TLS_DIR", raising=False)
        return {}
    folder = tmp_path / "certs"
    make_authority(folder)
    for role in INITIAL:
        issue(folder, role, role, 1.0)
    monkeypatch.setenv("CULM_TLS_DIR", str(folder / "operator"))
    roles = {"coordinator": "coordinator", **{f"n{i}": "stage" for i in range(3)}}
    return {name: {"CULM_TLS_DIR": str(folder / role)} for name, role in roles.items()}


Opener = Callable[[str, str], grpc.Channel]


@pytest.fixture
def opened(environments: dict[str, dict[str, str]]) -> Iterator[Opener]:
    """A channel to an address where somebody of this role serves, as a stage."""
    channels: list[grpc.Channel] = []

    def connect(address: str, role: str) -> grpc.Channel:
        if environments:
            own = Path(environments["n0"]["CULM_TLS_DIR"])
            files = [(own / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
            options = [("grpc.ssl_target_name_override", f"{role}.culm")]
            channels.append(grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options))
        else:
            channels.append(grpc.insecure_channel(address))
        return channels[-1]

    yield connect
    for channel in channels:
        channel.close()


class Attack(threading.Thread):
    """Beside the training: all messages to the coordinator, then all to the nodes; then the file is removed."""

    def __init__(self, coordinator: str, nodes: list[str], connect: Opener, hold: Path) -> None:
        super().__init__(name="attack", daemon=True)
        self._coordinator = connect(coordinator, "coordinator")
        self._nodes = [connect(address, "stage") for address in nodes]
        self._hold = hold
        self.failure: BaseException | None = None
        self.sent = [0, 0]

    def run(self) -> None:
        try:
            fuzzer = Fuzzer(SEED)
            while fuzzer.sent < MESSAGES:
                fuzzer.attend(self._coordinator)
                fuzzer.ask(self._coordinator)
            self.sent[0], fuzzer.sent = fuzzer.sent, 0
            while fuzzer.sent < MESSAGES:
                for node in self._nodes:
                    fuzzer.deliver(node)
            self.sent[1] = fuzzer.sent
        except BaseException as error:
            self.failure = error
        finally:
            self._hold.unlink()


def largest(pids: dict[str, int]) -> dict[str, int]:
    """Resident bytes of each process now."""
    return {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}


def trained(
    job: Job, folder: Path, environments: dict[str, dict[str, str]], connect: Opener | None, hold: Path
) -> tuple[str, list[int], dict[str, int]]:
    """The weights' hash, how many messages were sent, and how large the processes have become."""
    attacks: list[Attack] = []
    sizes: dict[str, int] = {}
    with LocalCluster(job, Path.cwd(), 3, folder=folder, environments=environments) as cluster:

        def beside(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
            if connect is not None and status.step >= 2 and not attacks:
                addresses = [node.address for node in status.nodes]
                attacks.append(Attack(cluster.address, addresses, connect, hold))
                attacks[0].start()
            sizes.update(largest(cluster.pids()))

        outcome = train(cluster, lambda status, events, outcome: None, beside)
        for attack in attacks:
            attack.join()
            if attack.failure is not None:
                raise attack.failure
        assert outcome.losses_of_nodes == [], "nobody was lost"
    return outcome.sha256, attacks[0].sent if attacks else [], sizes


def test_training_goes_on_beside_any_messages(
    job: Job,
    environments: dict[str, dict[str, str]],
    opened: Opener,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold = tmp_path / "hold"
    monkeypatch.setenv(HOLD, str(hold))
    hold.touch()
    sha256, sent, sizes = trained(job, tmp_path / "run", environments, opened, hold)
    assert sha256 == run_plain(job).sha256
    print(f"\n{sent[0]} messages to the coordinator, {sent[1]} to nodes")
    assert min(sent) >= MESSAGES
    for log in (tmp_path / "run").glob("*.log"):
        assert "Traceback" not in log.read_text(errors="replace"), log
    if SOAK:
        _, _, calm = trained(job, tmp_path / "calm", environments, None, hold)
        more = {name: (sizes[name] - calm[name]) / 1e6 for name in calm}
        print(f"MB more than in the calm run: {more}")
        assert max(more.values()) < MEGABYTES

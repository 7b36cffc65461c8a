"""A node whose bits would differ takes no part: another processor, other weights files, other data (rule 23)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from culm.local.cluster import LocalCluster
from culm.pipeline.job import Job
from culm.pipeline.user_code.model import ModelSource
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect
from tests.hostile.job_files import ENVIRONMENT, ROOT, make_job

USUAL = torch.backends.cpu.get_cpu_capability()


def node(cluster: LocalCluster, name: str, folder: Path, **environment: str) -> "subprocess.Popen[bytes]":
    """A node of its own, as on another machine."""
    words = [sys.executable, "-m", "culm", "stage", "--coordinator", cluster.address, "--name", name]
    with (folder / f"{name}.err").open("wb") as log:
        words += ["--notices", "none"]
        return subprocess.Popen(words, cwd=folder, env={**ENVIRONMENT, **environment}, stderr=log)


def first_event(stub: CoordinatorStub, kind: str) -> pb.ListEventsResponse:
    """Waits for it."""
    events = stub.ListEvents(pb.ListEventsRequest(from_sequence=1, follow=True))
    found: pb.ListEventsResponse = next(event for event in events if event.kind == kind)
    events.cancel()
    return found


def last_line(folder: Path, name: str) -> str:
    return (folder / f"{name}.err").read_text().strip().splitlines()[-1]


LISTED = """
import os
import time
import torch
from torch.utils.data import Dataset
class Listed(Dataset):
    def __init__(self):
        self.names = sorted(range(64), reverse=bool(os.environ.get("REVERSED")))
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.005)  # the run goes on until the other node has started: it needs no core for that
        return torch.full((8,), float(self.names[index])), torch.tensor(self.names[index] % 4)
"""


def listed(folder: Path, hardware: str) -> tuple[Job, str]:
    """A job that trains slowly and for long, and where its nodes find its dataset."""
    (folder / "listed.py").write_text(LISTED)
    job = make_job(steps=10**6, stages=1, dataset="listed:Listed", job=f'hardware = "{hardware}"')
    return job, f"{folder}{os.pathsep}{ROOT}"


@pytest.mark.skipif(USUAL == "DEFAULT", reason="this processor has no other instruction set than torch's default")
@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["same", "any"])
def test_a_node_with_another_instruction_set(hardware: str, tmp_path: Path) -> None:
    """It joined, and whatever it computed had other bits."""
    job, path = listed(tmp_path, hardware)
    with LocalCluster(job, tmp_path, 1, folder=tmp_path / "run", patience=20.0) as cluster:
        channel, stub = connect(cluster.address)
        with channel:
            first_event(stub, "plan")
            other = node(cluster, "odd", tmp_path, ATEN_CPU_CAPABILITY="default", PYTHONPATH=path)
            try:
                if hardware == "same":
                    assert other.wait() == 2
                    said = first_event(stub, "dismissed").text
                    assert "odd computes on " in said
                    assert "DEFAULT" in said
                    assert f" {USUAL}," in said
                    assert 'set job.hardware to "any"' in said
                    assert last_line(tmp_path, "odd") == f"culm stage: {said}"
                else:
                    assert first_event(stub, "hot").fields["node"] == "odd", "it stands by"
            finally:
                other.kill()
                other.wait()


def with_weights(folder: Path, values: torch.Tensor) -> None:
    """A model whose first layer reads its weights from a file that its arguments do not name."""
    folder.mkdir()
    torch.save(values, folder / "weights.pt")
    (folder / "pretrained.py").write_text(
        "import os\nimport torch\nfrom torch import nn\n"
        "def first():\n"
        "    layer = nn.Linear(8, 8)\n"
        "    weight = torch.load(os.environ['WEIGHTS'] + '/weights.pt')\n"
        "    layer.load_state_dict({'weight': weight, 'bias': torch.zeros(8)})\n"
        "    return layer\n"
        "def layers(**names):\n    return [first, lambda: nn.Linear(8, 4)]\n"
    )


def test_a_node_that_reads_other_weights_is_refused(tmp_path: Path) -> None:
    """Its standby's copy differed from the owner's from the beginning, and took over at the next lost node."""
    with_weights(tmp_path / "one", torch.eye(8))
    with_weights(tmp_path / "two", 2 * torch.eye(8))
    job = make_job(steps=6, stages=2, layers="pretrained:layers")
    with LocalCluster(job, tmp_path / "one", 0, folder=tmp_path / "run", patience=20.0) as cluster:
        channel, stub = connect(cluster.address)
        path = f"{tmp_path}/one{os.pathsep}{ROOT}"
        started = [
            node(cluster, name, tmp_path, WEIGHTS=f"{tmp_path}/{files}", PYTHONPATH=path)
            for name, files in (("n0", "one"), ("n1", "two"))
        ]
        try:
            with channel:
                refused = first_event(stub, "dismissed")
                name, said = refused.fields["node"], refused.text
                assert started[int(name[1:])].wait() == 2
                assert "with other initial values than a node before it" in said
                assert last_line(tmp_path, name) == f"culm stage: {said}"
        finally:
            for process in started:
                process.kill()
                process.wait()


def parts(job: Job) -> dict[str, str]:
    return dict(ModelSource(job).identity().parts)


@pytest.mark.parametrize("hardware", ["same", pytest.param("any", marks=pytest.mark.slow)])
def test_a_node_whose_dataset_has_another_order(hardware: str, tmp_path: Path) -> None:
    """Folders and sets list their files in another order elsewhere: inputs were paired with other samples' targets."""
    job, path = listed(tmp_path, hardware)
    with LocalCluster(job, tmp_path, 1, folder=tmp_path / "run", patience=20.0) as cluster:
        channel, stub = connect(cluster.address)
        with channel:
            first_event(stub, "plan")
            other = node(cluster, "odd", tmp_path, REVERSED="1", PYTHONPATH=path)
            try:
                if hardware == "same":
                    assert other.wait() == 2
                    said = first_event(stub, "dismissed").text
                    assert "the dataset gives other samples on odd (64 samples, " in said
                    assert "sort what a folder or a set lists" in said
                    assert last_line(tmp_path, "odd") == f"culm stage: {said}"
                else:
                    assert first_event(stub, "hot").fields["node"] == "odd", "samples may have other bits there"
            finally:
                other.kill()
                other.wait()


STEERED = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from tests.hostile.jobs import samples
{at_import}
def first():
    torch.set_num_threads(3)
    return nn.Linear(8, 4)
def layers(**names):
    torch.set_num_threads(3)
    return [first]
def data():
    torch.set_num_threads(3)
    return samples()
"""


def steered(folder: Path, monkeypatch: pytest.MonkeyPatch, at_import: str) -> ModelSource:
    """A job whose module does something to torch when it is imported."""
    name = f"steered_{folder.name}"
    (folder / f"{name}.py").write_text(STEERED.format(at_import=at_import))
    monkeypatch.syspath_prepend(str(folder))
    return ModelSource(make_job(stages=1, layers=f"{name}:layers", dataset=f"{name}:data"))


def test_the_jobs_threads_count_whatever_its_code_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum has other bits on other numbers of threads: those that a constructor set held on its node alone."""
    source = steered(tmp_path, monkeypatch, "torch.set_num_threads(3)")
    assert torch.get_num_threads() == 1
    for run in (lambda: source.build(0), source.dataset, source.outlines):
        run()
        assert torch.get_num_threads() == 1


SWITCHES: dict[str, tuple[str, str, str]] = {  # what a module does when it is imported, what undoes it, what is told
    "oneDNN": ("torch.backends.mkldnn.enabled = False", "torch.backends.mkldnn.enabled = True", "mkldnn.enabled False"),
    "denormals": ("torch.set_flush_denormal(True)", "torch.set_flush_denormal(False)", "denormal numbers off"),
    "precision": (
        "torch.set_float32_matmul_precision('medium')",
        "torch.set_float32_matmul_precision('highest')",
        "matmul medium",
    ),
    "deterministic": (
        "torch.use_deterministic_algorithms(True)",
        "torch.use_deterministic_algorithms(False)",
        "deterministic on",
    ),
    "oneDNN's precision": (
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
        "torch.backends.mkldnn.matmul.fp32_precision = 'none'",
        "bf16",
    ),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_of_torch_is_told(switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on, off, told = SWITCHES[switch]
    if switch == "oneDNN's precision" and not hasattr(torch.backends.mkldnn, "matmul"):
        pytest.skip("this torch has no such switch")
    calm = parts(make_job(stages=1))["hardware"]
    assert told not in calm
    try:
        assert told in steered(tmp_path, monkeypatch, on).identity().parts["hardware"]
    finally:
        exec(off)
    assert parts(make_job(stages=1))["hardware"] == calm


@pytest.mark.parametrize("name", ["DNNL_DEFAULT_FPMATH_MODE", "DNNL_CPU_ISA_HINTS", "ONEDNN_CPU_ISA_HINTS"])
def test_a_variable_that_chooses_kernels_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN heeds each of its variables by two names."""
    monkeypatch.delenv(name, raising=False)
    before = parts(make_job(stages=1))
    monkeypatch.setenv(name, "BF16")
    after = parts(make_job(stages=1))
    assert {part for part in after if after[part] != before[part]} == {"hardware"}
    assert f"{name}=BF16" in after["hardware"]


def test_the_identity_changes_with_every_file_that_arguments_name(tmp_path: Path) -> None:
    weights, table = tmp_path / "weights.bin", tmp_path / "table.csv"
    weights.write_bytes(b"one")
    table.write_bytes(b"1,2")
    job = make_job(
        layers="tests.hostile.jobs:with_files",
        args=f'weights = "{weights}", other = ["{table}", "no file", 3]',
        stages=1,
    )
    before, print_before = parts(job), ModelSource(job).fingerprint()
    assert parts(job) == before
    for file in (weights, table):
        kept = file.read_bytes()
        file.write_bytes(b"two")
        assert {k for k, v in parts(job).items() if v != before[k]} == {"model"}
        assert ModelSource(job).fingerprint() != print_before
        file.write_bytes(kept)
    assert parts(job) == before


def test_a_large_file_is_hashed_in_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from culm.pipeline.user_code import fingerprint

    monkeypatch.setattr(fingerprint, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(fingerprint, "SAMPLE_BYTES", 10)
    file = tmp_path / "large"
    content = bytes(5000)
    seen = set()
    for at in (None, 0, 4999, 2):
        changed = content if at is None else content[:at] + b"x" + content[at + 1 :]
        file.write_bytes(changed)
        seen.add(fingerprint.digest_of_file(file))
    file.write_bytes(content + b"0")
    seen.add(fingerprint.digest_of_file(file))
    assert len(seen) == 5

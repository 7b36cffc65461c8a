"""A certificate lets its holder in under the role, the run and the name that it has, and nobody else reads its key."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from culm.local.authority import INITIAL, issue, make_authority
from culm.pipeline.errors import JobError
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.roles import CertificateHolder, identity_in
from culm.pipeline.rpc.tls import Files, add_port, check_own
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from tests.hostile.commands import in_process

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    make_authority(tmp_path / "certs")
    return tmp_path / "certs"


def culm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "culm", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


def identity(folder: Path) -> CertificateHolder:
    certificate = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return identity_in(names.get_values_for_type(x509.UniformResourceIdentifier))


@pytest.mark.parametrize(
    "name", ["../../x", "/tmp/x", "a/b", "..", ".", "", "-x", "x" * 65, "n\n0", "n0?role=operator"]
)
def test_a_name_that_is_a_path_is_refused(authority: Path, name: str) -> None:
    before = set(authority.parent.rglob("*"))
    with pytest.raises(JobError, match="is not a valid name"):
        issue(authority, "stage", name, 1.0)
    for run, node in ((name, ""), ("", name)) if name else ():  # nothing: any
        with pytest.raises(JobError, match="is not a valid name"):
            issue(authority, "stage", "n0", 1.0, run, node)
    assert set(authority.parent.rglob("*")) == before


def test_the_command_says_so_in_one_line(authority: Path) -> None:
    for words in (["--name", "../../x"], ["--name", "x", "--days", "nan"], ["--name", "x", "--days", "-1"]):
        done = culm("certs", "issue", str(authority), "--role", "viewer", *words)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert culm("certs", "issue", str(authority), "--role", "viewer", "--node", "n0").returncode == 2


def test_it_names_what_it_was_issued_for(authority: Path) -> None:
    done = culm("certs", "issue", str(authority), "--role", "stage", "--node", "n0", "--run", "nightly")
    assert done.returncode == 0, done.stderr
    assert identity(Path(done.stdout.strip())) == CertificateHolder("stage", "n0", "nightly", "n0")
    assert identity(issue(authority, "stage", "stage", 1.0)) == CertificateHolder("stage", "stage")


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        pytest.param("--role stage --name n0 --run nightly", "node n0", id="without its node"),
        pytest.param("--role stage --node n0", "run nightly", id="without its run"),
        pytest.param("--role stage --node n0 --run weekly", "run nightly", id="of another run"),
        pytest.param("--role operator --name n0 --run nightly", "role stage", id="of another role"),
    ],
)
def test_a_newer_certificate_lets_its_holder_do_no_more_than_the_old_one(
    words: str, lost: str, authority: Path, tmp_path: Path
) -> None:
    issue(authority, "stage", "n0", 1.0, "nightly", "n0")
    line = in_process("certs", "issue", "certs", *words.split(), folder=tmp_path).line
    assert f"certs/n0: the certificate there counts for {lost} alone; give --{lost} again" in line
    assert identity(authority / "n0") == CertificateHolder("stage", "n0", "nightly", "n0")


def test_a_newer_certificate_may_let_its_holder_do_as_much_or_less(authority: Path, tmp_path: Path) -> None:
    issue(authority, "redis", "redis", 1.0)
    issue(authority, "stage", "n0", 1.0)
    for words in ("redis", "stage --name n0", "stage --node n0 --run nightly", "stage --node n0 --run nightly"):
        assert in_process("certs", "issue", "certs", "--role", *words.split(), folder=tmp_path).code == 0
    assert identity(authority / "n0") == CertificateHolder("stage", "n0", "nightly", "n0")


def test_a_key_is_its_owners_alone_whatever_the_umask(authority: Path) -> None:
    before = os.umask(0)
    try:
        folder = issue(authority, "operator", "operator", 1.0)
    finally:
        os.umask(before)
    for key in (folder / "tls.key", authority / "ca.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


Connect = Callable[[Path], CoordinatorStub]


@pytest.fixture
def coordinator(authority: Path, tmp_path: Path) -> Iterator[Connect]:
    """A real coordinator of the run nightly, and what connects to it by a folder of certificates."""
    for role in INITIAL:
        issue(authority, role, role, 1.0)
    job = str(ROOT / "examples" / "digits_mlp.toml")
    words = ["coordinator", "--job", job, "--listen", "127.0.0.1:0", "--run", "nightly"]
    environment = {**os.environ, "CULM_TLS_DIR": str(authority / "coordinator")}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "culm", *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    channels: list[grpc.Channel] = []

    def connect(folder: Path) -> CoordinatorStub:
        files = [(folder / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
        options = [("grpc.ssl_target_name_override", "coordinator.culm")]
        channels.append(grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options))
        return CoordinatorStub(channels[-1])

    yield connect
    for channel in channels:
        channel.close()
    process.terminate()
    process.wait()
    process.stdout.close()


def joins(stub: CoordinatorStub, node: str) -> str:
    """What the first answer is, or why there is none."""
    join = pb.AttendRequest(join=pb.Join(node=node, incarnation=1, address="n:1", protocol_version=0))
    try:
        return next(iter(stub.Attend(iter([join]), timeout=PATIENCE))).WhichOneof("body") or ""
    except grpc.RpcError as error:
        return details(error)


def test_a_node_joins_under_its_own_name_and_run_alone(coordinator: Connect, authority: Path) -> None:
    own = coordinator(issue(authority, "stage", "n0", 1.0, "nightly", "n0"))
    assert joins(own, "n0") == "dismiss", "let in, and told that it speaks another protocol"
    assert "the certificate is for the node n0, not for 'n1'" in joins(own, "n1")
    other = coordinator(issue(authority, "stage", "n7", 1.0, "weekly", "n7"))
    assert "the certificate is for the run weekly" in joins(other, "n7")
    assert joins(coordinator(authority / "stage"), "any") == "dismiss", "a certificate without names is any node's"


def test_an_operator_of_another_run_looks_at_nothing(coordinator: Connect, authority: Path) -> None:
    for run, allowed in (("weekly", False), ("nightly", True), ("", True)):
        stub = coordinator(issue(authority, "operator", f"by-{run or 'any'}", 1.0, run))
        if allowed:
            assert stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE).phase == "waiting"
            continue
        with pytest.raises(grpc.RpcError, match="is for the run weekly"):
            stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)


def other_key(folder: Path) -> None:
    (folder / "tls.key").write_bytes((folder.parent / "viewer" / "tls.key").read_bytes())


def key_with_a_password(folder: Path) -> None:
    key = serialization.load_pem_private_key((folder / "tls.key").read_bytes(), None)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (folder / "tls.key").write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"x")))


def no_authority(folder: Path) -> None:
    (folder / "ca.crt").write_text("none")


@pytest.mark.parametrize("damage", [other_key, key_with_a_password, no_authority])
def test_a_server_with_files_that_do_not_belong_together_says_so(
    damage: Callable[[Path], None], authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that its port was in use, or its address no address of the host."""
    issue(authority, "viewer", "viewer", 1.0)
    folder = issue(authority, "coordinator", "coordinator", 1.0)
    served = Files(folder)
    damage(folder)
    monkeypatch.setenv("CULM_TLS_DIR", str(folder))
    for check in (check_own, partial(add_port, grpc.server(ThreadPoolExecutor(1)), "127.0.0.1:0")):
        with pytest.raises(JobError, match="the key there is not that of the certificate"):
            check()
    assert served.changed() is None, "the old ones stay in use"

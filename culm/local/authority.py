"""A certificate authority of a cluster, and the certificates that it signs: one folder a role (``rpc.tls``)."""

import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from culm.pipeline.errors import JobError
from culm.pipeline.text import check_name

# The DNS names in the certificates of those that others connect to. Redis' clients know no roles: they compare the host
# that they connect to.
SERVERS = {
    "coordinator": ("coordinator.culm",),
    "stage": ("stage.culm",),
    "redis": ("redis.culm", "redis", "culm-redis", "localhost"),
}
INITIAL = ("coordinator", "stage", "operator", "viewer", "redis")
AUTHORITY_DAYS = 3650


def make_authority(folder: Path) -> None:
    """Writes ``ca.crt`` and ``ca.key``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Culm development CA")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # another machine's clock may be behind
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_key(folder / "ca.key", key)
    _replace(folder / "ca.crt", _pem(certificate), 0o644)


def issue(folder: Path, role: str, name: str, days: float, run: str = "", node: str = "") -> Path:
    """Writes ``name/{ca.crt,tls.crt,tls.key}``, each file in one move, and returns that sub-folder.

    Raises JobError without an authority, and for a bad name: names become a folder, and part of a URI.
    """
    check_name(name, "--name")
    uri = f"culm://{role}/{name}"
    for part, value in (("run", run), ("node", node)):
        if value:
            uri += f"/{part}/{check_name(value, f'--{part}')}"
    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        signing = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise JobError(f"no authority can be read ({error})", str(folder), "make one: culm certs init DIR") from error
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
    if role in SERVERS:
        names += [x509.DNSName(host) for host in SERVERS[role]]
    now = datetime.now(UTC)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]  # servers call others as well
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{role} {name}")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # another machine's clock may be behind
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(purposes if role in SERVERS else purposes[:1]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .sign(signing, hashes.SHA256())
    )
    own = folder / name
    own.mkdir(exist_ok=True)
    _write_key(own / "tls.key", key)
    _replace(own / "tls.crt", _pem(certificate), 0o644)
    _replace(own / "ca.crt", (folder / "ca.crt").read_bytes(), 0o644)
    return own


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _replace(path, pem, 0o600)


def _replace(path: Path, data: bytes, mode: int) -> None:
    """A reader sees the old file or the new one, never half of it."""
    part = path.with_name(
        f".{path.name}.{secrets.token_hex(4)}"
    )  # nobody else can have opened it: the key stays secret
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
    os.replace(part, path)

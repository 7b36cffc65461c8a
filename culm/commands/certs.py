"""``culm certs``: certificates for a cluster, signed by an authority that is made for it."""

import argparse
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from culm.pipeline.errors import JobError
from culm.pipeline.rpc.roles import FORM
from culm.pipeline.text import check_name
from culm.terminal import flags

# The DNS names in the certificates of those that others connect to. Redis' clients know no roles: they compare the host
# that they connect to.
SERVERS = {
    "coordinator": ("coordinator.culm",),
    "stage": ("stage.culm",),
    "redis": ("redis.culm", "redis", "culm-redis", "localhost"),
}
INITIAL = ("coordinator", "stage", "operator", "viewer", "redis")
AUTHORITY_DAYS = 3650


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "certs",
        help="make certificates",
        description="Makes a certificate authority, and a folder of certificates for each role. Set CULM_TLS_DIR to "
        "one of them. docs/security.md says what each role may do.",
        epilog="example: culm certs init certs",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    init = actions.add_parser(
        "init", help="an authority, and a certificate for each role", epilog="example: culm certs init certs --days 30"
    )
    init.add_argument("folder", metavar="DIR", type=Path, help="where to put the authority and the roles' folders")
    init.set_defaults(command=_init)
    issue = actions.add_parser(
        "issue",
        help="one more certificate, or a newer one",
        epilog="examples:\n  culm certs issue certs --role viewer --name wall-screen\n"
        "  culm certs issue certs --role stage --node n0 --run nightly",
    )
    issue.add_argument("folder", metavar="DIR", type=Path, help="the authority's folder")
    issue.add_argument("--role", required=True, choices=INITIAL, help="what its holder may do")
    issue.add_argument("--name", help="its folder, and the name in it; default: the node, else the role")
    issue.add_argument("--node", default="", help="with --role stage: join as this node alone; default: as any")
    issue.set_defaults(command=_issue)
    for action in (init, issue):
        action.add_argument("--run", default="", help="use it in this run alone; default: in any")
        action.add_argument(
            "--days",
            type=flags.number(0.0, 36500.0, above=True),
            default=90.0,
            help="days for which a certificate is valid; default: 90",
        )


def _init(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    if (folder / "ca.crt").exists():
        mend = "use culm certs issue for more certificates, or another folder"
        raise JobError("the folder holds an authority already", str(folder), mend)
    make_authority(folder)
    for role in INITIAL:
        issue(folder, role, role, arguments.days, arguments.run)
    print(f"certificates for {', '.join(INITIAL)} are in {folder}; keep {folder / 'ca.key'} to yourself")
    return 0


def _issue(arguments: argparse.Namespace) -> int:
    if arguments.node and arguments.role != "stage":
        raise JobError(f"the role {arguments.role} joins as no node", "--node", "leave it out, or give --role stage")
    name = arguments.name or arguments.node or arguments.role
    _refuse_to_widen(arguments.folder / check_name(name, "--name"), arguments.role, arguments.run, arguments.node)
    print(issue(arguments.folder, arguments.role, name, arguments.days, arguments.run, arguments.node))
    return 0


def _refuse_to_widen(own: Path, role: str, run: str, node: str) -> None:
    """Raises JobError where a newer certificate would let its holder do more than the one that it replaces."""
    try:
        old = x509.load_pem_x509_certificate((own / "tls.crt").read_bytes())
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return  # there is none
    found = [FORM.fullmatch(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
    for before in filter(None, found):
        for flag, then, now in (("--role", before[1], role), ("--run", before[3], run), ("--node", before[4], node)):
            if then and then != now:
                mend = f"give {flag} {then} again, or another --name for a certificate beside it"
                raise JobError(f"the certificate there counts for {flag[2:]} {then} alone", str(own), mend)


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

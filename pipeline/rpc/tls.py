"""Mutual TLS on every channel where CULM_TLS_DIR names a folder with ca.crt, tls.crt and tls.key; plain without it.

The files are named as in a Kubernetes TLS secret. A server reads them again at every handshake, a client for every new
channel. The certificate's URI says who somebody is: ``culm://ROLE/NAME``. A client checks the server's role too: only a
coordinator's certificate names the host ``coordinator.culm``.
"""

import logging
import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.patience import DEFAULT, Patience
from culm.pipeline.rpc.channel import channel_options
from culm.pipeline.rpc.probe import Obstacle, find_obstacle

log = logging.getLogger("culm.tls")

VARIABLE = "CULM_TLS_DIR"
FILES = ("ca.crt", "tls.key", "tls.crt")
ANOTHER = "make another: culm certs issue"
LOOPBACK = ("127.", "localhost", "[::1]", "unix:")
OPEN = "everybody who reaches this address could read and change the training"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of the three files, in PEM."""

    ca: bytes
    key: bytes
    certificate: bytes


def folder() -> Path | None:
    """Where the certificates are; None: no TLS."""
    named = os.environ.get(VARIABLE, "")
    return Path(named) if named else None


def read(where: Path) -> Credentials:
    """Raises JobError, naming the file that is missing."""
    try:
        ca, key, certificate = ((where / name).read_bytes() for name in FILES)
    except OSError as error:
        mend = "make certificates with culm certs init, and name the folder of one role"
        raise JobError(f"a certificate cannot be read ({error})", f"{VARIABLE}={where}", mend) from error
    return Credentials(ca, key, certificate)


def check_validity(identity: Credentials, where: Path) -> None:
    """Raises JobError for an expired certificate: the other end would refuse it without a reason."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        ends = load_pem_x509_certificate(identity.certificate).not_valid_after_utc
    except ValueError as error:
        raise JobError(f"this is not a certificate ({error})", f"{where}/tls.crt", ANOTHER) from error
    if ends < datetime.now(UTC):
        raise JobError(f"the certificate expired on {ends:%Y-%m-%d %H:%M} UTC", f"{where}/tls.crt", ANOTHER)


def check_key(identity: Credentials, where: Path) -> None:
    """Raises JobError for files that do not belong together: gRPC would say no more than that it cannot listen."""
    if not _belong_together(identity):
        what = "the key there is not that of the certificate, or ca.crt is not an authority's"
        raise JobError(what, f"{VARIABLE}={where}", ANOTHER)


def check_own() -> None:
    """Raises JobError where this process has certificates that are of no use."""
    where = folder()
    if where is not None:
        identity = read(where)
        check_validity(identity, where)
        check_key(identity, where)


def open_channel(address: str, role: str, patience: Patience = DEFAULT) -> grpc.Channel:
    """A channel to a server of this role (``coordinator`` or ``stage``)."""
    where = folder()
    options = channel_options(patience)
    if where is None:
        return grpc.insecure_channel(address, options=options)
    own = read(where)
    check_validity(own, where)
    credentials = grpc.ssl_channel_credentials(own.ca, own.key, own.certificate)
    # Certificates name roles, since machines come and go: gRPC compares the role's name, whatever the address.
    name = ("grpc.ssl_target_name_override", f"{role}.culm")
    return grpc.secure_channel(address, credentials, options=[*options, name])


def why_silent(address: str, role: str) -> Obstacle | None:
    """Why the server does not answer a channel of ``open_channel``; None: it answers by now."""
    return find_obstacle(address, role, folder())


class Files:
    """The certificates of a server: the newest files that belong together. Thread-safe."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._known = read(where)

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        known = self._known
        return grpc.ssl_server_certificate_configuration([(known.key, known.certificate)], known.ca)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked at every handshake; None: nothing new. Files that are just being replaced count as not new."""
        with self._lock:
            try:
                now = read(self._where)
            except JobError as error:
                log.warning("could not read the new certificates, so the old ones stay in use: %s", error)
                return None
            if now == self._known or not _belong_together(now):
                return None
            self._known = now
        log.info("serving with the new certificates in %s", self._where)
        return self.configuration()


def _belong_together(identity: Credentials) -> bool:
    """Whether the key is the certificate's: it is not while the files are being replaced one by one."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate, load_pem_x509_certificates

    try:
        key = load_pem_private_key(identity.key, password=None)
        certificate = load_pem_x509_certificate(identity.certificate)
        return certificate.public_key() == key.public_key() and bool(load_pem_x509_certificates(identity.ca))
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: the key asks for a password
        return False


def is_open(listen: str) -> bool:
    """Whether other machines reach a server at this address, and nothing tells who they are."""
    return folder() is None and not listen.startswith(LOOPBACK)


def add_port(server: Any, listen: str, insecure: bool = False) -> int:
    """Binds a server, sync or aio, and returns its port. 0 or RuntimeError if the port is taken.

    Raises JobError for an address that other machines reach, unless there are certificates or ``insecure`` allows it;
    and for certificates that are of no use.
    """
    where = folder()
    if where is not None:
        check_key(read(where), where)
        files = Files(where)
        credentials = grpc.dynamic_ssl_server_credentials(
            files.configuration(),
            files.changed,  # type: ignore[arg-type]  # None means unchanged
            require_client_authentication=True,
        )
        return int(server.add_secure_port(listen, credentials))
    if not insecure and is_open(listen):
        mend = f"set {VARIABLE} to a folder of certificates (culm certs init makes some), or allow it with --insecure"
        raise JobError(OPEN, f"--listen {listen}", mend)
    return int(server.add_insecure_port(listen))

"""Why a server cannot be reached: one attempt of its own, step by step, which says at which step it failed.

gRPC says of most failures that a deadline was exceeded. Each of them wants another mend, so they are told apart: the
name, the route, the port, whatever listens there, TLS, and the certificate of either end. Knows sockets, not gRPC.
"""

import errno
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 2.0  # seconds for each step: connecting, the handshake, the first words
# What a client of HTTP/2 says first: the preface, and SETTINGS that change nothing. The server's own follow at once.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS, FRAME_KIND = 4, 3  # a frame's kind follows the three bytes of its length
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
# OpenSSL's X509_V_ERR_*.
NOT_YET, EXPIRED, OTHER_HOST = 9, 10, 62


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a connection fails, and the mend."""

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}: {self.mend}"


def find_obstacle(address: str, role: str, certificates: Path | None, patience: float = PATIENCE) -> Obstacle | None:
    """Why a server of this role does not answer at HOST:PORT. None: it does, or the address has another form.

    ``certificates``: the folder with ca.crt, tls.crt and tls.key; None: a connection without TLS.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return None
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=patience) as connection:
            if certificates is None:
                return _without_tls(connection, patience)
            return _with_tls(connection, role, certificates, patience)
    except socket.gaierror as error:
        return Obstacle(
            f"the name {host} is not known ({error.strerror})", "correct the name, or wait until DNS has it"
        )
    except TimeoutError:
        what = f"nothing came back from {host} in {patience:g} s: packets are dropped, or no machine has that address"
        return Obstacle(what, f"open port {port} in firewalls and network policies, and check that the machine is up")
    except ConnectionRefusedError:
        return Obstacle(
            f"the machine answers, but nothing listens at port {port}", f"start the {role}, or correct the port"
        )
    except OSError as error:
        if error.errno in UNREACHABLE:
            return Obstacle(f"no route leads to {host}", "put both machines into one network")
        return Obstacle(f"the connection fails ({error})", "check the address and the network")


def _without_tls(connection: socket.socket, patience: float) -> Obstacle | None:
    try:
        connection.sendall(PREFACE)
        said = connection.recv(FRAME_KIND + 1)
    except TimeoutError:
        return _silent(patience)
    except ConnectionError:
        said = b""
    if len(said) > FRAME_KIND and said[FRAME_KIND] == SETTINGS:
        return None
    if not said or said.startswith(b"\x15\x03"):  # gRPC closes; others send an alert of TLS
        what = "the server there answers with TLS alone"
        mend = "set CULM_TLS_DIR to a folder of certificates; if the other end has none, something else listens there"
        return Obstacle(what, mend)
    return Obstacle("a server that is not Culm's listens there", "correct the port")


def _with_tls(connection: socket.socket, role: str, certificates: Path, patience: float) -> Obstacle | None:
    try:
        context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
    except (OSError, ssl.SSLError) as error:
        return Obstacle(f"the certificates in {certificates} cannot be used ({error})", "make others: culm certs issue")
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(connection, server_hostname=f"{role}.culm") as secured:
            secured.sendall(PREFACE)
            # In TLS 1.3 a client learns only after its handshake that its certificate is refused.
            return None if secured.recv(1) else _refused(certificates, "it ends the connection")
    except TimeoutError:
        return _silent(patience)
    except ssl.SSLCertVerificationError as error:
        return _not_trusted(error, role, certificates)
    except ssl.SSLEOFError:
        return _ended("closed")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if "ALERT" in reason:
            return _refused(certificates, reason)
        what = f"the server there answers, but without TLS ({reason})"
        return Obstacle(what, "start the other end with CULM_TLS_DIR too, or correct the port")
    except ConnectionError:
        return _ended("reset")


def _not_trusted(error: ssl.SSLCertVerificationError, role: str, certificates: Path) -> Obstacle:
    newer = "issue a newer one on its machine: culm certs issue"
    match error.verify_code:
        case code if code == EXPIRED:
            return Obstacle("the server's certificate has expired", newer)
        case code if code == NOT_YET:
            return Obstacle("the server's certificate is not valid yet", "set the clocks of both machines right")
        case code if code == OTHER_HOST:
            what = f"the server's certificate is for another role: it does not name {role}.culm"
            return Obstacle(what, f"give the port of a {role}, or give that server a {role}'s certificate")
        case _:
            what = f"the server's certificate is not of the authority in {certificates}/ca.crt ({error.verify_message})"
            return Obstacle(what, "give both ends certificates of one authority")


def _refused(certificates: Path, reason: str) -> Obstacle:
    what = f"the server refuses the certificate in {certificates} ({reason})"
    return Obstacle(what, "give both ends valid certificates of one authority: culm certs issue")


def _silent(patience: float) -> Obstacle:
    what = (
        f"the connection is accepted, but nothing is sent for {patience:g} s: the process is frozen, or is not Culm's"
    )
    return Obstacle(what, "look at that process, and at any proxy before it")


def _ended(how: str) -> Obstacle:
    what = f"the connection was {how} during the TLS handshake"
    return Obstacle(what, "check that Culm listens there with CULM_TLS_DIR, and that nothing between cuts connections")

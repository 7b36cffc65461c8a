"""Why no connection to a server comes about: one attempt of its own, step by step, and the step at which it ends.

gRPC says of most failures that a deadline was exceeded. Each of these wants another mend, so they are told apart: the
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
    """At what a connection fails, and what to do."""

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}: {self.mend}"


def find_obstacle(address: str, role: str, certificates: Path | None, patience: float = PATIENCE) -> Obstacle | None:
    """Why a server of this role does not answer at HOST:PORT; None: it does, or the address is of another form.

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
        return Obstacle(f"the name {host} is not known ({error.strerror})", "correct it, or wait until DNS knows it")
    except TimeoutError:
        what = f"nothing came back from {host} in {patience:g} s: packets are dropped, or no machine has that address"
        return Obstacle(what, f"let firewalls and network policies pass port {port}, and see that the machine is up")
    except ConnectionRefusedError:
        return Obstacle(
            f"the machine is there, but nothing listens at port {port}", f"start the {role}, or name its port"
        )
    except OSError as error:
        if error.errno in UNREACHABLE:
            return Obstacle(f"no route leads to {host}", "see that both machines are in one network")
        return Obstacle(f"the connection fails ({error})", "see that the address is right and the network is up")


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
        what = "somebody answers, but not without TLS"
        return Obstacle(
            what, "name certificates in CULM_TLS_DIR; if the other end has none, something else listens there"
        )
    return Obstacle("something else than Culm listens there", "name the right port")


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
        what = f"somebody answers, but not with TLS ({reason})"
        return Obstacle(what, "start the other end with CULM_TLS_DIR too, or name the right port")
    except ConnectionError:
        return _ended("reset")


def _not_trusted(error: ssl.SSLCertVerificationError, role: str, certificates: Path) -> Obstacle:
    newer = "issue a newer one there: culm certs issue"
    match error.verify_code:
        case code if code == EXPIRED:
            return Obstacle("its certificate has expired", newer)
        case code if code == NOT_YET:
            return Obstacle("its certificate is not valid yet", "set the clocks of both machines right")
        case code if code == OTHER_HOST:
            what = f"its certificate is for another role: it does not name {role}.culm"
            return Obstacle(what, f"name the port of a {role}, or give that one a {role}'s certificate")
        case _:
            what = f"its certificate is not of the authority in {certificates}/ca.crt ({error.verify_message})"
            return Obstacle(what, "let both ends have certificates of one authority")


def _refused(certificates: Path, reason: str) -> Obstacle:
    what = f"it refuses the certificate in {certificates} ({reason})"
    return Obstacle(what, "let both ends have certificates of one authority that are valid: culm certs issue")


def _silent(patience: float) -> Obstacle:
    what = f"the connection is accepted, but for {patience:g} s nothing is said: it is frozen, or no server of Culm"
    return Obstacle(what, "look at that process, and at whatever passes connections on to it")


def _ended(how: str) -> Obstacle:
    what = f"the connection was {how} during the TLS handshake"
    return Obstacle(what, "see that Culm listens there with CULM_TLS_DIR, and that nothing between cuts connections")

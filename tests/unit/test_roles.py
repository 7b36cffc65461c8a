"""What a certificate's role may call."""

import pytest

from culm.pipeline.rpc.roles import ALLOWED, NOBODY, ROLES, CertificateHolder, identity_of, refusal, stranger
from culm.protos import coordinator_pb2, stage_pb2


def peer(*uris: str, names: tuple[str, ...] = ()) -> dict[str, list[bytes]]:
    """What gRPC says of a peer whose certificate has these URIs, and these names beside them."""
    return {
        "transport_security_type": [b"ssl"],
        "x509_subject_alternative_name": [name.encode() for name in (*uris, *names)],
        "peer_uri": [uri.encode() for uri in uris],
    }


@pytest.mark.parametrize(
    ("uris", "identity"),
    [
        (["culm://stage/n0"], CertificateHolder("stage", "n0")),
        (["culm://stage/n0/run/nightly/node/n0"], CertificateHolder("stage", "n0", "nightly", "n0")),
        (["culm://stage/any/node/n-7.a_b"], CertificateHolder("stage", "any", "", "n-7.a_b")),
        (["culm://viewer/wall/run/nightly"], CertificateHolder("viewer", "wall", "nightly", "")),
        (["CULM://Stage/N0"], CertificateHolder("stage", "N0")),  # a scheme and a host have no case; a path has one
        (["culm://st%61ge/n%30"], CertificateHolder("stage", "n0")),
        (["https://culm/operator", "culm://stage/n0"], CertificateHolder("stage", "n0")),
        (["https://culm/operator"], NOBODY),
        (["culm://stage/n0", "culm://operator/n0"], NOBODY),  # which of them, nobody could say
        (["culm://root/n0"], NOBODY),
        (["culm://stage%2foperator/n0"], NOBODY),
        (["culm://stage/..%2foperator"], NOBODY),
        (["culm://stage/n0/node/..%2f..%2fx"], NOBODY),
        (["culm://stage/n0/node/"], NOBODY),
        (["culm://stage/n0/operator/x"], NOBODY),
        (["culm://stage/n0?role=operator"], NOBODY),
        (["culm://stage"], NOBODY),
        ([], NOBODY),
    ],
)
def test_who_somebody_is_stands_in_one_uri(uris: list[str], identity: CertificateHolder) -> None:
    assert identity_of(peer(*uris)) == identity


def test_a_host_name_that_looks_like_a_role_is_none() -> None:
    """An authority that checks DNS names signs any text of that form; a role it would not have given."""
    assert identity_of(peer(names=("culm://operator/x", "stage.culm"))) == NOBODY


def test_a_certificate_of_another_run_may_nothing_here() -> None:
    other = peer("culm://operator/x/run/nightly")
    assert "is for the run nightly" in refusal("/culm.v1.Coordinator/Drain", other, "weekly")
    assert refusal("/culm.v1.Coordinator/Drain", other, "nightly") == ""
    assert refusal("/culm.v1.Coordinator/Drain", peer("culm://operator/x"), "weekly") == ""


def test_a_certificate_that_names_a_node_is_that_nodes() -> None:
    assert "is for the node n0, not for 'n1'" in stranger(peer("culm://stage/n0/node/n0"), "n1")
    assert stranger(peer("culm://stage/n0/node/n0"), "n0") == ""
    assert stranger(peer("culm://stage/stage"), "n1") == ""


@pytest.mark.parametrize("role", ROLES)
def test_only_an_operator_drains_and_kills(role: str) -> None:
    for method in ("Drain", "Kill"):
        assert bool(refusal(f"/culm.v1.Coordinator/{method}", peer(f"culm://{role}/x"))) == (role != "operator")


@pytest.mark.parametrize("role", ROLES)
def test_people_who_look_may_ask_a_node_for_its_timetable(role: str) -> None:
    refused = refusal("/culm.v1.Timetables/GetTimetable", peer(f"culm://{role}/x"))
    assert bool(refused) == (role not in ("viewer", "operator"))


def test_without_tls_whoever_reaches_the_port_may() -> None:
    for context in ({}, {"transport_security_type": [b"insecure"]}):
        assert refusal("/culm.v1.Coordinator/Kill", context) == ""


def test_a_certificate_without_a_role_may_nothing() -> None:
    assert "no role of Culm" in refusal("/culm.v1.Coordinator/GetStatus", peer("culm.example"))


def test_every_method_of_culm_says_who_may_call_it() -> None:
    files = (coordinator_pb2.DESCRIPTOR, stage_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert methods <= set(ALLOWED)

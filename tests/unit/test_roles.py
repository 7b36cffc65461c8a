"""What a certificate's role may call."""

import pytest

from pipeline.roles import ALLOWED, ROLES, refusal, role_of
from protos import coordinator_pb2, stage_pb2


def peer(*names: str) -> dict[str, list[bytes]]:
    return {
        "transport_security_type": [b"ssl"],
        "x509_subject_alternative_name": [name.encode() for name in names],
    }


def test_the_role_is_in_the_uri_alone() -> None:
    assert role_of(peer("stage.culm", "culm://stage/n0")) == "stage"
    assert role_of(peer("operator", "https://culm/operator")) == ""
    assert role_of({}) == ""


@pytest.mark.parametrize("role", ROLES)
def test_only_an_operator_drains_and_kills(role: str) -> None:
    for method in ("Drain", "Kill"):
        assert bool(refusal(f"/culm.v1.Coordinator/{method}", peer(f"culm://{role}/x"))) == (role != "operator")


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

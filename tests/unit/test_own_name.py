"""A node that nobody named is called as people know its container."""

import socket
from pathlib import Path

import pytest

from culm.stage_server.own_name import container_name, own_name

GETENT = """#!/bin/sh
test "$*" = "-s dns hosts 172.18.0.5" && echo "172.18.0.5      culm-stage-2.culm_default"
"""


@pytest.fixture
def dns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's, for a container whose own files know it by its hash alone."""
    program = tmp_path / "getent"
    program.write_text(GETENT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(socket, "gethostbyname", lambda host: {"70110aa99dfc": "172.18.0.5"}.get(host, "10.0.0.9"))


def test_a_container_is_called_as_docker_ps_calls_it(dns: None) -> None:
    assert container_name("70110aa99dfc") == "culm-stage-2"


def test_where_dns_knows_nothing_there_is_no_such_name(
    dns: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert container_name("somewhere") == ""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert container_name("70110aa99dfc") == ""


def test_a_process_beside_others_has_its_number_in_its_name() -> None:
    assert own_name().startswith(socket.gethostname()[:20])
    assert own_name().rpartition("-")[2].isdigit()

"""What a cloud's metadata service says of this machine is believed as far as it can be."""

import json
from collections.abc import Iterator

import pytest

from culm.pipeline.machine import Machine
from culm.stage_server.notices import find_machine
from tests.metadata_server import PATIENCE, MetadataServer


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    server = MetadataServer()
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url + "/")
    for variable in ("AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"):
        monkeypatch.delenv(variable, raising=False)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("identity", "machine"),
    [
        ({"instanceType": None, "region": 3, "availabilityZone": ["a"]}, Machine("aws", "", "", "", "spot")),
        (
            {"instanceType": "x" * 10_000, "region": "us\x1b[2J", "availabilityZone": "Zone A"},
            Machine("aws", "", "", "", "spot"),
        ),
        ({"instanceType": "p3.2xlarge", "availabilityZone": "../a"}, Machine("aws", "p3.2xlarge", "", "", "spot")),
    ],
)
def test_what_a_cloud_says_and_no_machine_has_is_left_out(
    identity: dict[str, object],
    machine: Machine,
    cloud: MetadataServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The coordinator would refuse the node for it: the user saw a node that dialled for ever."""
    cloud.identity = json.dumps(identity).encode()
    assert find_machine("aws", timeout=PATIENCE) == machine
    assert "\x1b" not in caplog.text

"""Where a node tells others to reach it."""

import pytest

from culm.stage_server.address import advertised


@pytest.mark.parametrize(
    ("host", "advertise", "coordinator", "told"),
    [
        ("10.0.0.5", "", "10.0.0.1:7070", "10.0.0.5:7071"),
        ("0.0.0.0", "", "127.0.0.1:7070", "127.0.0.1:7071"),
        ("[::]", "", "[::1]:7070", "[::1]:7071"),
        ("0.0.0.0", "n3.example", "127.0.0.1:7070", "n3.example:7071"),
        ("0.0.0.0", "n3.example:9000", "127.0.0.1:7070", "n3.example:9000"),
    ],
)
def test_where_others_reach_a_node(host: str, advertise: str, coordinator: str, told: str) -> None:
    assert advertised(host, 7071, advertise, coordinator) == told

"""What two nodes of one machine share: offered on one host alone, opened whole or not at all, and given back."""

import os
from collections.abc import Callable

import pytest

from culm.protos import stage_pb2
from culm.stage_server.one_machine.nearby import Offer, Opened, of_one_machine

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


def files() -> int:
    """Pipes and the like that are open here; mapped memory closes when it is collected."""
    names = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    kinds = [os.readlink(name) for name in names if os.path.lexists(name)]
    return sum(kind.startswith(("pipe:", "anon_inode:[eventfd]")) for kind in kinds)


def test_it_is_offered_on_one_host_alone() -> None:
    assert of_one_machine("10.0.0.1:7000", "10.0.0.1:7001")
    assert not of_one_machine("10.0.0.1:7000", "10.0.0.2:7000")
    assert of_one_machine("[::1]:7000", "[::1]:7001")


def test_each_end_hears_the_other_and_nothing_stays_open() -> None:
    before = files()
    offer = Offer()
    opened = Opened(offer.memory)
    assert offer.requests.write(b"up")
    assert opened.requests.read() == [b"up"]
    assert opened.answers.write(b"down")
    assert offer.answers.read() == [b"down"]
    opened.close()
    assert offer.answers.read() is None
    assert not offer.requests.write(b"up")
    offer.close()
    assert files() == before


def test_the_end_of_a_stream_stops_both() -> None:
    offer = Offer()
    opened = Opened(offer.memory)
    opened.end()
    assert opened.requests.read() is None
    assert not opened.answers.write(b"down")
    opened.close()
    offer.close()


def without_pipes(memory: stage_pb2.Memory) -> None:
    memory.requests = memory.answers = 0


def of_another_process(memory: stage_pb2.Memory) -> None:
    memory.secret = b"x" * len(memory.secret)


def with_half(memory: stage_pb2.Memory) -> None:
    memory.answers = memory.file


@pytest.mark.parametrize("change", [without_pipes, of_another_process, with_half])
def test_what_cannot_be_opened_whole_is_not_opened(change: Callable[[stage_pb2.Memory], None]) -> None:
    offer = Offer()
    change(offer.memory)
    before = files()
    with pytest.raises(ValueError, match=r"it has no pipes|another process|no pipe"):
        Opened(offer.memory)
    assert files() == before
    offer.close()

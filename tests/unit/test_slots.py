"""Memory shared by the two ends of a stream: pieces come out as they went in, and nothing waits for ever."""

import os
import subprocess
import sys
import threading

import pytest

from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.one_machine.slots import LEAST, SLOTS, SharedSlots, Slots, of_one_machine

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
PATIENCE = 30.0


def parts(*fills: int) -> list[memoryview]:
    return [memoryview(bytes([fill]) * LEAST) for fill in fills]


def piece(number: int, size: int) -> tensor_pb2.Slot:
    return tensor_pb2.Slot(number=number, size=size)


def test_it_is_offered_on_one_host_alone() -> None:
    assert of_one_machine("10.0.0.1:7000", "10.0.0.1:7001")
    assert not of_one_machine("10.0.0.1:7000", "10.0.0.2:7000")
    assert of_one_machine("[::1]:7000", "[::1]:7001")


def test_pieces_are_read_by_another_process_as_they_were_put() -> None:
    slots = Slots()
    slots.opened()
    number = slots.put(parts(1, 2))
    assert number is not None
    reader = (
        "import sys; from culm.protos import stage_pb2, tensor_pb2\n"
        "from culm.stage_server.one_machine.slots import SharedSlots\n"
        "offer = stage_pb2.Memory.FromString(bytes.fromhex(sys.argv[1]))\n"
        "piece = tensor_pb2.Slot(number=int(sys.argv[2]), size=int(sys.argv[3]))\n"
        "sys.stdout.buffer.write(bytes(SharedSlots(offer).read(piece)))"
    )
    words = [slots.memory.SerializeToString().hex(), str(number), str(2 * LEAST)]
    done = subprocess.run([sys.executable, "-c", reader, *words], check=True, capture_output=True)
    assert done.stdout == b"".join(parts(1, 2))


def test_what_is_small_or_comes_before_the_receiver_can_read_goes_over_the_stream() -> None:
    slots = Slots()
    assert slots.put(parts(1)) is None
    slots.opened()
    assert slots.put([memoryview(bytes(LEAST - 1))]) is None
    assert slots.put(parts(1)) is not None


def test_a_slot_is_not_written_again_before_it_is_given_back() -> None:
    slots = Slots()
    slots.opened()
    shared = SharedSlots(slots.memory)
    taken = [slots.put(parts(i)) for i in range(SLOTS)]
    assert sorted(number for number in taken if number is not None) == list(range(SLOTS))
    got: list[int | None] = []
    waiting = threading.Thread(target=lambda: got.append(slots.put(parts(99))))
    waiting.start()
    for i, number in enumerate(taken):
        assert number is not None
        assert bytes(shared.read(piece(number, LEAST))) == bytes(parts(i)[0])
    slots.give_back([taken[3] or 0])
    waiting.join(PATIENCE)
    assert got == [taken[3]]
    assert bytes(shared.read(piece(taken[3] or 0, LEAST))) == bytes(parts(99)[0])


def test_who_waits_for_a_slot_of_a_stream_that_ends_waits_no_more() -> None:
    slots = Slots()
    slots.opened()
    for i in range(SLOTS):
        slots.put(parts(i))
    got: list[int | None] = []
    waiting = threading.Thread(target=lambda: got.append(slots.put(parts(99))))
    waiting.start()
    slots.close()
    waiting.join(PATIENCE)
    assert got == [None]
    assert slots.put(parts(1)) is None


def test_memory_of_anybody_else_is_refused() -> None:
    slots = Slots()
    offer = slots.memory
    with pytest.raises(ValueError, match="another process"):
        SharedSlots(stage_pb2.Memory(pid=offer.pid, file=offer.file, secret=b"x" * len(offer.secret)))
    with pytest.raises(OSError, match="No such file"):
        SharedSlots(stage_pb2.Memory(pid=offer.pid, file=1 << 20, secret=offer.secret))
    reading, writing = os.pipe()  # no write ever comes: opening it must not wait
    with pytest.raises(ValueError, match="another file"):
        SharedSlots(stage_pb2.Memory(pid=offer.pid, file=reading, secret=offer.secret))
    os.close(reading)
    os.close(writing)


def test_a_piece_outside_of_the_memory_is_refused() -> None:
    slots = Slots()
    shared = SharedSlots(slots.memory)
    for number, size in ((SLOTS, 1), (0, 1 << 30)):
        with pytest.raises(ValueError, match="no slot"):
            shared.read(piece(number, size))


def test_what_is_offered_can_still_be_told_once_its_stream_has_broken() -> None:
    slots = Slots()
    offer = slots.memory
    slots.close()
    assert slots.memory == offer

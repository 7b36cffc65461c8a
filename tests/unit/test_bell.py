"""The bell: it wakes who rests, and what comes through a pipe is taken once, by one of two threads."""

import select
import threading
from collections.abc import Callable

import pytest

from culm.stage_server.one_machine.bell import Bell
from culm.stage_server.one_machine.pipe import Reader, Writer

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs Linux")
PATIENCE = 30.0
MESSAGES = 2000


def test_who_was_rung_before_it_waits_does_not_wait() -> None:
    bell = Bell()
    bell.rests()
    bell.ring()
    bell.wait()


def test_every_message_is_taken_once_and_one_who_rests_goes_before_the_streams_own_thread(
    ends: tuple[Reader, Writer],
) -> None:
    reader, writer = ends
    bell = Bell()
    turn = threading.Lock()
    came = threading.Semaphore(0)
    by: dict[str, list[bytes]] = {"bell": [], "stream": []}
    order: list[bytes] = []

    def take(who: str) -> bool:
        with turn:
            messages = reader.read_now()
            by[who] += messages or []
            order.extend(messages or [])
            for _ in messages or []:
                came.release()
            return messages is not None

    def rest() -> None:
        while len(order) < MESSAGES:
            bell.rests()
            bell.wait()

    def read() -> None:
        while reader.wait(PATIENCE) and take("stream"):
            pass

    bell.watch(reader, lambda: take("bell"))
    threads = [threading.Thread(target=rest), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    sent = [str(i).encode() for i in range(MESSAGES)]
    for message in sent:
        assert writer.write_now(message)
        assert came.acquire(timeout=PATIENCE)
    writer.close()
    bell.ring()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert order == sent
    # The one that took the last message may be on its way to wait when the next one comes.
    assert len(by["bell"]) > MESSAGES / 4  # 31 of 2,000 if the stream's thread is woken first


def test_a_pipe_that_has_ended_does_not_wake_again(ends: tuple[Reader, Writer]) -> None:
    reader, writer = ends
    bell = Bell()
    bell.watch(reader, _into(reader, []))
    writer.close()
    bell.rests()
    bell.wait()
    bell.leave(reader)  # once more, by the stream's thread
    bell.rests()
    ringer = threading.Thread(target=bell.ring)
    ringer.start()
    bell.wait()
    ringer.join(PATIENCE)


def test_one_that_has_ended_is_not_taken_for_another_of_the_same_number(ends: tuple[Reader, Writer]) -> None:
    ended, writer = ends
    again = Reader(ended.file)  # as after the first was closed
    bell = Bell()
    taken: list[bytes] = []
    bell.watch(ended, lambda: False)
    bell.leave(ended)
    bell.watch(again, _into(again, taken))
    bell.leave(ended)
    writer.write(b"new")
    bell.rests()
    bell.wait()
    assert taken == [b"new"]


def _into(reader: Reader, taken: list[bytes]) -> Callable[[], bool]:
    def take() -> bool:
        messages = reader.read_now()
        taken.extend(messages or [])
        return messages is not None

    return take

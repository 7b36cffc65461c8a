"""Messages through a pipe: they come out as they went in, and whoever waits at an end can be told to stop."""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from culm.stage_server.one_machine.pipe import LENGTH, LONGEST, WHOLE, Reader, Writer, open_pipe, pipe

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="needs Linux")
PATIENCE = 30.0


def beside(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Does it on another thread; what it gave."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def all_of(reader: Reader) -> list[bytes]:
    found = []
    while (messages := reader.read(PATIENCE)) is not None:
        found.extend(messages)
    return found


def test_messages_of_any_size_come_out_as_they_went_in(ends: tuple[Reader, Writer]) -> None:
    reader, writer = ends
    messages = [b"", b"a", bytes(range(256)) * 1024, b"b" * 5, b"c" * (1 << 21)]

    def write() -> bool:
        took = [writer.write(message) for message in messages]
        writer.close()
        return all(took)

    thread, took = beside(write)
    assert all_of(reader) == messages
    thread.join(PATIENCE)
    assert took == [True]


def test_a_reader_waits_no_longer_than_it_was_told(ends: tuple[Reader, Writer]) -> None:
    reader, _ = ends
    assert reader.read(0.001) == []


def test_a_reader_that_is_woken_has_no_messages_and_goes_on(ends: tuple[Reader, Writer]) -> None:
    reader, writer = ends
    thread, found = beside(reader.read)
    reader.wake()
    thread.join(PATIENCE)
    assert found == [[]]
    writer.write(b"on")
    assert reader.read() == [b"on"]


def test_a_word_from_a_thread_does_not_hide_a_message(ends: tuple[Reader, Writer]) -> None:
    reader, writer = ends
    writer.write(b"both")
    reader.wake()
    assert reader.read() == [b"both"]
    assert reader.read(0.001) == []


@pytest.mark.parametrize("stop", [Reader.end, Reader.close])
def test_who_waits_for_a_message_stops_when_the_stream_ends(
    ends: tuple[Reader, Writer], stop: Callable[[Reader], None]
) -> None:
    reader, _ = ends
    thread, found = beside(reader.read)
    stop(reader)
    thread.join(PATIENCE)
    assert found == [None]
    assert reader.read() is None


def test_what_is_in_the_pipe_when_the_stream_ends_is_read(ends: tuple[Reader, Writer]) -> None:
    reader, writer = ends
    writer.write(b"last")
    reader.end()
    assert reader.read() == [b"last"]
    assert reader.read() is None


@pytest.mark.parametrize("stop", [Writer.end, Writer.close])
def test_who_waits_for_room_stops_when_the_stream_ends(
    ends: tuple[Reader, Writer], stop: Callable[[Writer], None]
) -> None:
    reader, writer = ends
    thread, took = beside(lambda: writer.write(b"x" * LONGEST))
    select.select([reader.file], [], [], PATIENCE)
    stop(writer)
    thread.join(PATIENCE)
    assert took == [False]
    assert not writer.write(b"y")


def test_a_writer_whose_reader_is_gone_is_told(ends: tuple[Reader, Writer]) -> None:
    reader, writer = ends
    reader.close()
    assert not writer.write(b"x")


def test_a_message_is_written_at_once_whole_or_not_at_all(ends: tuple[Reader, Writer]) -> None:
    reader, writer = ends
    assert not writer.write_now(b"x" * (WHOLE + 1))
    messages = 0
    while writer.write_now(b"x" * WHOLE):
        messages += 1
    assert messages > 1
    found = []
    while here := reader.read_now():
        found += here
    assert found == [b"x" * WHOLE] * messages
    assert writer.write_now(b"")
    reader.close()
    assert not writer.write_now(b"")


def test_a_killed_writer_ends_its_messages() -> None:
    script = (
        "import os, signal, sys; from culm.stage_server.one_machine.pipe import LENGTH, Writer, pipe\n"
        "reading, writing = pipe()\n"
        "print(os.getpid(), writing, flush=True)\n"
        "sys.stdin.readline()\n"
        "writer = Writer(writing)\n"
        "writer.write(b'whole')\n"
        "os.write(writing, LENGTH.pack(8) + b'half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid, file = map(int, process.stdout.readline().split())
        reader = Reader(open_pipe(pid, file, os.O_RDONLY))
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert all_of(reader) == [b"whole"]
        reader.close()


def test_what_no_writer_writes_is_refused() -> None:
    reading, writing = pipe()
    reader = Reader(reading)
    os.write(writing, LENGTH.pack(LONGEST + 1))
    with pytest.raises(ValueError, match="a message of"):
        reader.read()
    reader.close()
    os.close(writing)


def test_a_file_that_is_no_pipe_is_refused() -> None:
    file = os.memfd_create("none")
    with pytest.raises(ValueError, match="no pipe"):
        open_pipe(os.getpid(), file, os.O_RDONLY)
    os.close(file)
    with pytest.raises(OSError, match="No such file"):
        open_pipe(os.getpid(), 1 << 20, os.O_RDONLY)

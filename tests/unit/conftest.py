"""What several unit tests begin with."""

from collections.abc import Iterator

import pytest

from culm.stage_server.one_machine.pipe import Reader, Writer, pipe


@pytest.fixture
def ends() -> Iterator[tuple[Reader, Writer]]:
    """Of a pipe."""
    reading, writing = pipe()
    reader, writer = Reader(reading), Writer(writing)
    yield reader, writer
    reader.close()
    writer.close()

"""A value that is not the one that was made is told from it, whichever bit is another one."""

import struct
import tempfile
from pathlib import Path

import pytest
import torch
import xxhash

from culm.pipeline.tensors.digests import Corrupted
from culm.pipeline.tensors.raw import bytes_of
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, chunks, header_of
from culm.protos import tensor_pb2
from culm.stage_server.spiller import written
from tests.headers import sealed

VALUE = Value((("output.0", torch.tensor([1.5, -0.0, float("nan")])), ("constant.1", torch.arange(3))), (2.0,), (0.5,))


def arrived(header: tensor_pb2.ValueHeader, content: bytes, digest: int | None = None) -> Value:
    assembler = Assembler(header)
    assembler.add(0, content)
    return assembler.value(digest)


def content_of(value: Value) -> bytes:
    return b"".join(bytes(bytes_of(tensor)) for _, tensor in value.tensors)


def test_the_digest_is_the_one_that_the_protocol_names() -> None:
    said = content_of(VALUE) + struct.pack("<2d", 2.0, 0.5)
    assert VALUE.digest == sealed(VALUE).digest == xxhash.xxh3_64_intdigest(said)
    activation = Value.activation(torch.ones(2), torch.tensor(1))
    assert activation.digest == xxhash.xxh3_64_intdigest(content_of(activation) + activation.structure.encode())


def test_any_flipped_bit_is_found() -> None:
    content = content_of(VALUE)
    assert arrived(sealed(VALUE), content).digest == VALUE.digest
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupted, match=f"and not {VALUE.digest:016x}"):
            arrived(sealed(VALUE), bytes(flipped))


@pytest.mark.parametrize("change", [{"squared_norms": (2.5,)}, {"tallies": (0.25,)}, {"structure": "x"}], ids=str)
def test_numbers_and_structure_belong_to_it(change: dict[str, object]) -> None:
    header = sealed(VALUE)
    for field in change:
        header.ClearField(field)  # type: ignore[arg-type]
    header.MergeFrom(tensor_pb2.ValueHeader(**change))  # type: ignore[arg-type]
    with pytest.raises(Corrupted):
        arrived(header, content_of(VALUE))


def test_it_keeps_its_digest_wherever_it_goes(tmp_path: Path) -> None:
    """A bit that flips where a value is kept is found by whoever gets the value next."""
    got = arrived(sealed(VALUE), content_of(VALUE))
    got.tensors[0][1][0] += 1
    with pytest.raises(Corrupted):
        arrived(sealed(got), content_of(got))

    large = Value.single(torch.rand(1 << 12))
    with tempfile.TemporaryFile(dir=tmp_path, buffering=0) as file:
        on_disk = written(large, file)
    assert on_disk.digest == large.digest
    on_disk.tensor()[7] += 1
    with pytest.raises(Corrupted):
        arrived(sealed(on_disk), content_of(on_disk))


def test_a_digest_may_come_behind_the_bytes_or_not_at_all() -> None:
    content, header = content_of(VALUE), header_of(VALUE)
    assert not header.HasField("digest")
    assert arrived(header, content, VALUE.digest).digest == VALUE.digest
    assert arrived(header, content).digest == VALUE.digest, "as it came: a node of before tells none"
    with pytest.raises(Corrupted):
        arrived(header, content, VALUE.digest ^ 1)


def test_the_digest_does_not_depend_on_pieces() -> None:
    value = Value.single(torch.rand(10, 10).T)
    assembler = Assembler(sealed(value))
    for offset, payload in chunks(value, 7):
        assembler.add(offset, b"".join(payload))
    assert assembler.value().digest == value.digest

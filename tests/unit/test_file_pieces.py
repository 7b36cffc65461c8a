"""A header and the tensors that follow it are the file that the library writes."""

import pytest
import torch
from safetensors.torch import load, save

from culm.pipeline.checkpoints.file_pieces import header_of, word_of
from culm.pipeline.tensors.raw import bytes_of

STATE = {
    "weight": torch.arange(6.0).reshape(2, 3),
    "bias": torch.zeros(3),
    "a.step": torch.tensor(7.0),
    "count": torch.tensor(9),
    "half": torch.arange(5.0).to(torch.bfloat16),
    "mask": torch.tensor([True, False, True]),
    "nothing": torch.empty(0, 4),
    "größe": torch.ones(1, dtype=torch.float64),
}


def joined(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    header, sizes = header_of(tensors, metadata)
    assert sizes == {name: bytes_of(tensors[name]).nbytes for name in sizes}
    return b"".join([header, *(bytes_of(tensors[name]) for name in sizes)])


@pytest.mark.parametrize("metadata", [{}, {"order": "parameter.weight\t1\t2\nbuffer.bias"}], ids=["bare", "described"])
@pytest.mark.parametrize("names", [list(STATE), ["weight", "bias"], []], ids=["all", "floats", "none"])
def test_it_has_the_librarys_bytes(names: list[str], metadata: dict[str, str]) -> None:
    tensors = {name: STATE[name] for name in names}
    assert joined(tensors, metadata) == save(tensors, metadata or None)


def test_the_library_reads_what_it_would_not_write() -> None:
    """Tensors of one memory, and such as do not lie in order."""
    whole = torch.arange(12.0)
    tensors = {"whole": whole, "half": whole[:6].reshape(2, 3).T, "some": whole[::5], "small": torch.tensor([1, 2])}
    read = load(joined(tensors, {}))
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_a_dtype_that_the_library_cannot_hold_is_refused() -> None:
    assert word_of(torch.float32) == "F32"
    with pytest.raises(ValueError, match=r"safetensors cannot hold torch\.complex128"):
        word_of(torch.complex128)

"""A safetensors file as pieces of memory, most of which are the tensors' own: nothing is copied to be written."""

# The library's ``save`` copies a layer's state twice before its first byte is hashed, which was half of the CPU time of
# a checkpoint of GPT-2 small. The file is a length, a header in JSON, and the tensors' bytes one after the other
# (https://huggingface.co/docs/safetensors). The library reads it; what it would have written itself is the same file.

import json
from collections.abc import Mapping
from functools import cache

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from culm.pipeline.tensors.wire import bytes_of

Piece = bytes | memoryview
ALIGNED = 8  # bytes, to a multiple of which the header is filled up with spaces


def pieces_of(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> list[Piece]:
    """The file's bytes, in order. Raises ValueError for a dtype that safetensors cannot hold: see ``word_of``."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    pieces: list[Piece] = []
    at = 0
    # The largest elements first, so that each begins at a multiple of its size.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        piece = bytes_of(tensor)
        header[name] = {
            "dtype": word_of(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [at, at + piece.nbytes],
        }
        pieces.append(piece)
        at += piece.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return [len(text).to_bytes(8, "little") + text, *pieces]


@cache
def word_of(dtype: torch.dtype) -> str:
    """What the library calls the dtype. Raises ValueError where it cannot write it, or not read what it has written."""
    try:
        data = save({"tensor": torch.empty(0, dtype=dtype)})
        load(data)
    except (KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"safetensors cannot hold {dtype}") from error
    word: str = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["tensor"]["dtype"]
    return word

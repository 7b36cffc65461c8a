"""A safetensors file as its header and the tensors that follow it: no second copy of a state has to be made."""

# The library's ``save`` copies a layer's state twice before its first byte is hashed, which was half of the CPU time of
# a checkpoint of GPT-2 small. The file is a length, a header in JSON, and the tensors' bytes one after the other
# (https://huggingface.co/docs/safetensors). The library reads it; what it would have written itself is the same file.

import json
from collections.abc import Mapping
from functools import cache

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

ALIGNED = 8  # bytes, to a multiple of which the header is filled up with spaces


def header_of(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """The file's first bytes, and the sizes in bytes of the tensors that follow, in their order.

    Each of them lies there end to end, as ``Tensor.contiguous`` gives it. Raises ValueError for a dtype that
    safetensors cannot hold: see ``word_of``.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    sizes: dict[str, int] = {}
    at = 0
    # The largest elements first, so that each begins at a multiple of its size.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        sizes[name] = size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": word_of(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text, sizes


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

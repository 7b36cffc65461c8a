"""What the header of a value may say. It is checked before any memory is set aside for the value (rule 18).

A header comes from another process. Torch trusts what it is told: a shape that is larger than the bytes makes a tensor
that reads beyond them, and a dtype that is not made for plain bytes ends the process.
"""

import math
import os
from collections.abc import Mapping

import torch

from culm.pipeline.clip import NORM_CHUNK
from culm.pipeline.tensors.layout import span
from culm.protos import tensor_pb2

NAMES = [
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
# Dtypes whose elements are plain bytes of a known size. Older versions of torch lack some of the smallest floats.
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in NAMES if hasattr(torch, name)}
MOST_TENSORS = 1 << 16  # in a value: a layer's parameters and what an optimizer keeps of each
MOST_DIMENSIONS = 32
MOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # a value has to fit into this machine


def problem(header: tensor_pb2.ValueHeader, most_bytes: int = MOST_BYTES) -> str:
    """What is wrong with a header, in words; empty if its tensors fill exactly the bytes that it names."""
    if header.total_bytes > most_bytes:
        return f"the value has {header.total_bytes} bytes; {most_bytes} at most are accepted"
    if len(header.tensors) > MOST_TENSORS:
        return f"the value has {len(header.tensors)} tensors; {MOST_TENSORS} at most are accepted"
    if any(norm < 0.0 for norm in header.squared_norms):  # NaN passes: it is a fact of the job
        return f"a squared norm is {min(header.squared_norms)}; it cannot be negative"
    total, chunks = 0, 1
    for spec in header.tensors:
        dtype = DTYPES.get(spec.dtype)
        if dtype is None:
            return f"a tensor has dtype {spec.dtype[:32]!r}, which cannot be sent"
        if len(spec.shape) > MOST_DIMENSIONS:
            return f"a tensor has {len(spec.shape)} dimensions; {MOST_DIMENSIONS} at most are accepted"
        count = math.prod(spec.shape)
        if not count and math.prod(x or 1 for x in spec.shape) > most_bytes:  # torch multiplies these too
            return f"an empty tensor has the shape {list(spec.shape)}, whose other dimensions are too large"
        if spec.strides and len(spec.strides) != len(spec.shape):
            return f"a tensor has {len(spec.strides)} strides for {len(spec.shape)} dimensions"
        # Also of a dimension of one element, which reaches nowhere: torch takes no number beyond 63 bits.
        reach = max(span(tuple(spec.shape), tuple(spec.strides)), *spec.strides) if spec.strides and count else 0
        if reach * dtype.itemsize > most_bytes:
            return f"a tensor's strides {list(spec.strides)} reach further than {most_bytes} bytes"
        total += count * dtype.itemsize
        chunks += 1 + count // NORM_CHUNK
    if len(header.squared_norms) > chunks:
        return f"the value has {len(header.squared_norms)} squared norms; its tensors have {chunks} chunks at most"
    if total != header.total_bytes:
        return f"the tensors have {total} bytes, and the value has {header.total_bytes}"
    return ""

"""Headers as a sender writes them."""

from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import seal
from culm.protos import tensor_pb2


def sealed(value: Value) -> tensor_pb2.ValueHeader:
    """With the value's digest."""
    header = tensor_pb2.ValueHeader()
    seal(header, value)
    return header

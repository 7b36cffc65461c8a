"""A tensor's bytes, in order: little-endian, end to end."""

import numpy as np
import numpy.typing as npt
import torch

# The dtypes of most tensors. For these numpy makes a tensor, and gives its bytes, in half the time that torch takes.
PLAIN: dict[torch.dtype, npt.DTypeLike] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int32: np.int32,
    torch.int64: np.int64,
}


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory where it is contiguous on the CPU, else that of a copy."""
    if tensor.numel() == 0:
        return memoryview(b"")
    if tensor.dtype in PLAIN and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():  # as most: no copy
        return (tensor.detach() if tensor.requires_grad else tensor).numpy().data.cast("B")
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # Of a single element any stride is in order, also one of 0, with which torch makes no bytes of it.
    return memoryview(whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy())  # type: ignore[arg-type]

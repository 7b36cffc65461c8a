"""The graphs of redundant forwards: counted, and on an accelerator kept in the host's memory."""

from types import TracebackType
from typing import Any, Self

import torch


class Keeping:
    """While entered, tensors that a graph saves are counted (``size``, bytes) and moved off the accelerator.

    Does nothing unless ``wanted``. Parameters are saved as they are: they are held anyhow.
    """

    def __init__(self, device: torch.device, wanted: bool) -> None:
        self.size = 0
        self._device = device
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack) if wanted else None

    def __enter__(self) -> Self:
        if self._hooks is not None:
            self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hooks is not None:
            self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if tensor.is_leaf and tensor.requires_grad:
            return tensor
        self.size += tensor.numel() * tensor.element_size()
        return tensor if self._device.type == "cpu" else tensor.cpu()

    def _unpack(self, kept: Any) -> torch.Tensor:
        tensor: torch.Tensor = kept
        return tensor.to(self._device)

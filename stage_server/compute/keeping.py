"""The graphs of redundant forwards: counted, limited, and on an accelerator kept in the host's memory."""

import logging
from types import TracebackType
from typing import Any, Self

import torch

from culm.pipeline.tensors.layout import ALIGNMENT
from culm.stage_server.compute.device import Device

log = logging.getLogger("culm.keeping")


class Keeping:
    """While entered, tensors that a graph saves are counted (``size``, bytes) and moved to the host's memory. They are
    whole there once the device's ``copied`` has passed. Parameters are saved as they are: they are held anyhow.
    """

    def __init__(self, device: Device) -> None:
        self.size = 0
        self._device = device
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if tensor.is_leaf and tensor.requires_grad:
            return tensor, tensor._version
        self.size += tensor.numel() * tensor.element_size()
        # Detached: a node that saves its own output, such as a softmax's, would be in a circle with it, which nothing
        # frees but a backward. Of graphs that are kept for an heir most have none.
        # A view that begins elsewhere stays where it is: kernels choose by the address, and a copy has another one.
        kept = (tensor if tensor.data_ptr() % ALIGNMENT else self._device.home(tensor)).detach()
        return kept, kept._version

    def _unpack(self, kept: Any) -> torch.Tensor:
        tensor, version = kept
        if tensor._version != version:  # torch would say so, but looks only at what it has kept itself
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"{tensor.dtype} of shape {list(tensor.shape)}, saved at version {version}, is at {tensor._version}"
            )
        return tensor if tensor.data_ptr() % ALIGNMENT else self._device.here(tensor)


class Limit:
    """On the memory, in bytes, that the graphs of one step's redundant forwards take."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept, self._step = 0, -1
        self._told = False

    def exceeded(self, step: int, size: int) -> bool:
        """Whether with so much more the rest of the step is to go without redundant forwards; says so once."""
        if self._step != step:
            self._step, self._kept = step, 0
        self._kept += size
        if not size or self._kept <= self._most:
            return False
        if not self._told:
            self._told = True
            log.warning(
                "redundant forwards of a step take more than %d MB (resilience.redundant_bytes): "
                "the rest of each step goes without",
                self._most // 10**6,
            )
        return True

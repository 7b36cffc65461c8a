"""A device whose copies are made only when their event is waited for: whoever reads sooner reads garbage."""

# It computes on the CPU, and takes its modules' memory and the host's for two: what goes either way is copied. The
# source of a copy is read as late as the port allows, so whoever writes to it before sees other bits as well.

import threading
from collections import deque

import torch

from culm.pipeline.tensors.layout import memory_of
from culm.pipeline.user_code.streams import seed_all
from culm.stage_server.compute.device import PASSED, Event, Memory

GARBAGE = 0xA5  # in every byte: no number that a model computes with


class Late:
    """``Device`` as an accelerator is one, at its slowest."""

    place = torch.device("cpu")
    in_host = False

    def __init__(self) -> None:
        self._copies: deque[tuple[torch.Tensor, torch.Tensor]] = deque()  # ordered and not made: to, from
        self._ordered = self._made = 0
        self._lock = threading.Lock()

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        return memory_of(tensor).clone().as_strided(tensor.shape, tensor.stride())

    def home(self, tensor: torch.Tensor) -> torch.Tensor:
        source = memory_of(tensor.detach().resolve_conj())
        whole = torch.empty_like(source)
        whole.untyped_storage().fill_(GARBAGE)  # type: ignore[attr-defined]
        with self._lock:
            self._copies.append((whole, source))
            self._ordered += 1
        return whole.as_strided(tensor.shape, tensor.stride())

    def computed(self) -> Event:
        return PASSED

    def copied(self) -> Event:
        return _Copied(self, self._ordered)

    def memory(self) -> Memory:
        return Memory(1 << 30, 1 << 29)

    def warm_up(self) -> None:
        pass

    seed = staticmethod(seed_all)

    def make(self, count: int) -> None:
        """The first so many copies that were ordered."""
        with self._lock:
            while self._made < count:
                whole, source = self._copies.popleft()
                whole.copy_(source)
                self._made += 1


class _Copied:
    def __init__(self, device: Late, count: int) -> None:
        self._device = device
        self._count = count

    def wait(self) -> None:
        self._device.make(self._count)

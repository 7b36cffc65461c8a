"""What computes: the host's processor, or a CUDA card. No other module of a stage server speaks to CUDA."""

# Whatever leaves a node, and whatever it keeps for others, lies in the host's memory. So tensors go two ways:
#
#     here    to the device, before an instruction takes them. Work that is given later finds them there.
#     home    to the host's memory, after an instruction has made them, beside the next instruction:
#
#     compute thread          the card's computing      the card's copying       handing-on thread
#      │ forward of m           kernels
#      │ home(output)                   └─────────────▶  copies it out
#      │ computed().wait()      done                      │                       copied().wait()
#      │ forward of m + 1       kernels                   │                        │
#      │                                                  └─────────────────────▶ the worker takes the output of m
#
# Before its event has passed the memory that ``home`` gave holds anything: nobody may read it. The event, and not the
# device, is waited for, so neither thread waits for what the other one has ordered.
#
# Both keep strides, also those that skip or repeat elements: what lies in memory is copied as it lies there. Kernels
# choose their way by strides, and the stage after this one may be on this node or on another one.
#
# On the CPU a tensor is at home already and work is done when the call returns. So ``here`` and ``home`` give back what
# they are given, and every event has passed.

import os
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import psutil
import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.layout import memory_of
from culm.pipeline.tensors.pytrees import Pytree, mapped
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.streams import seed_all

VISIBLE = "CUDA_VISIBLE_DEVICES"  # CUDA's own variable: the cards that a process sees, by number or UUID


class Event(Protocol):
    """A moment in a device's work."""

    def wait(self) -> None:
        """Returns once the device has come to it, from any thread. Raises what went wrong there before it."""


class _Passed:
    def wait(self) -> None:
        pass


PASSED: Event = _Passed()  # of what is done already


class Memory(NamedTuple):
    """Bytes. ``free``: of the total, what nobody has taken."""

    total: int
    free: int


class Device(Protocol):
    """Work is done in the order in which it was given. One thread gives it, or several in turn under one lock."""

    @property
    def place(self) -> torch.device:
        """Where modules lie that it computes with."""

    @property
    def in_host(self) -> bool:
        """Whether that is the host's memory, where ``here`` and ``home`` have nothing to do."""

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host's memory, for work that is given from now on."""

    def home(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the host's memory; it is whole once ``copied`` has passed. Nobody may write to it until then.

        One that lies there already is given back as it is.
        """

    def computed(self) -> Event:
        """Passes when all work given so far is done."""

    def copied(self) -> Event:
        """Passes when every tensor that ``home`` has given so far is whole."""

    def memory(self) -> Memory: ...

    def warm_up(self) -> None:
        """Has the first piece of work take no longer than the others."""

    def seed(self, seed: int) -> None:
        """Seeds every generator that a layer may draw from, here and on the host; 63 bits."""


class Cpu:
    """The host's processor."""

    place = torch.device("cpu")
    in_host = True

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def home(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def computed(self) -> Event:
        return PASSED

    def copied(self) -> Event:
        return PASSED

    def memory(self) -> Memory:
        found = psutil.virtual_memory()
        return Memory(found.total, found.available)

    def warm_up(self) -> None:
        pass

    seed = staticmethod(seed_all)


CPU = Cpu()


class Cuda:
    """One CUDA card. Work goes to the present stream of the thread that gives it, which is the same one for all."""

    in_host = False

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self._copies = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        # torch keeps the memory of a pinned tensor until it is copied, and has copied any other when the call returns.
        memory = memory_of(tensor).to(self.place, non_blocking=True)
        return memory.as_strided(tensor.shape, tensor.stride())

    def home(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cpu:
            return tensor
        # What torch conjugates or negates lazily it would do in the host's memory, before the copy is there.
        source = tensor.detach().resolve_conj().resolve_neg()
        memory = memory_of(source)
        whole = torch.empty_like(memory, device="cpu", pin_memory=True)
        self._copies.wait_stream(torch.cuda.current_stream(self.place))
        with torch.cuda.stream(self._copies):
            whole.copy_(memory, non_blocking=True)
        source.record_stream(self._copies)  # its memory is given to nobody else before it is copied
        return whole.as_strided(source.shape, source.stride())

    def computed(self) -> Event:
        return _Recorded(torch.cuda.current_stream(self.place))

    def copied(self) -> Event:
        return _Recorded(self._copies)

    def memory(self) -> Memory:
        free, total = torch.cuda.mem_get_info(self.place)
        return Memory(total, free)

    def warm_up(self) -> None:
        """CUDA takes seconds for its first kernel, cuBLAS for its first product, torch for its first pinned page."""
        square = torch.ones(8, 8, device=self.place)
        self.home(square @ square)
        self.copied().wait()

    seed = staticmethod(seed_all)  # this process's present card is among what it seeds


class _Recorded:
    """What a stream has been given so far."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        # ``blocking``: whoever waits sleeps. A thread that spins takes a core from those that send and receive.
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()


def device_for(job: Job) -> Device:
    """The job's device on this machine, with torch set up so that the same work gives the same bits there.

    Of several cards it is the first one that the process sees. Raises JobError where it sees none.
    """
    try:
        place = device_of(job)
    except JobError as error:
        shown = os.environ.get(VISIBLE)
        if shown is None:
            raise
        what = f"{VISIBLE}={shown!r} leaves this node no CUDA device"
        raise JobError(what, "job.device", f"name a card that nvidia-smi -L lists, or unset {VISIBLE}") from error
    return CPU if place.type == "cpu" else Cuda(place)


def busy_share(device: Device) -> float | None:
    """The share of the last moments in which the card computed, for whatever process; None where nobody can tell.

    NVIDIA's library tells it, which torch asks by the package nvidia-ml-py.
    """
    if device.in_host:
        return None
    try:
        return min(100, max(0, torch.cuda.utilization(device.place))) / 100
    except Exception:  # no such package, or a card that does not tell; of many kinds, and a chart lacks a line
        return None


def samples_here(device: Device, samples: Pytree) -> Pytree:
    """Tensors of the host's memory on the device."""
    return samples if device.in_host else mapped(device.here, samples)


def value_here(device: Device, value: Value) -> Value:
    """A value of the host's memory, with its tensors on the device."""
    return value if device.in_host else _moved(value, device.here)


def value_home(device: Device, value: Value) -> Value:
    """The value with its tensors in the host's memory: see ``Device.home``."""
    return value if device.in_host else _moved(value, device.home)


def _moved(value: Value, move: Callable[[torch.Tensor], torch.Tensor]) -> Value:
    return replace(value, tensors=tuple((name, move(tensor)) for name, tensor in value.tensors))

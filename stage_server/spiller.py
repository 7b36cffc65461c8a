"""Has tensors that are kept until the commit lie on disk, once they take more memory than they may."""

# A node keeps every boundary tensor of a step until its commit, since a lost node's heir may ask for it (rule 5). With
# many pipelines these outgrow all else. The worker names those that nobody needs at present (``worker.spilling``); a
# thread of its own writes them, and the boxes then have the same tensors over the file:
#
#     compute thread       lock held     after an instruction: is too much in memory? which tensors go?
#     "spill"              unlocked      writes each into a file without a name, maps it into memory, and closes it
#                          lock held     the box that still has the tensor has it over the file from now on
#
# The system reads pages back when somebody looks at them, and nobody knows that it does. A file has no name, so nothing
# of it is left whatever becomes of the process. If the disk is full the tensors stay in memory; it is tried again in
# the next step.
#
# A tensor is written from its own bytes, in order. One with other strides stays in memory: a kernel may give other bits
# for what is read back (``tensors.layout``).

import logging
import mmap
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from queue import SimpleQueue

import torch

from culm.pipeline.keys import Key
from culm.pipeline.layer_bytes import LayerBytes, of_layers
from culm.pipeline.plan import Plan
from culm.pipeline.tensors.layout import strides_of
from culm.pipeline.tensors.raw import bytes_of
from culm.pipeline.tensors.values import Value
from culm.stage_server.turn import Turn
from culm.stage_server.worker.spilling import to_spill
from culm.stage_server.worker.worker import Worker

log = logging.getLogger("culm.spiller")

LEAST = mmap.PAGESIZE  # bytes; less than a page is no page given back
ALIGNED = 64  # bytes, as torch's own tensors are


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """For boundary tensors that are kept until the commit. Bytes."""

    above: int = 0  # what may lie in memory, if whoever started the node has said so; 0: what the layers leave
    memory: int = 0  # that the node may use for layers and these; 0: not known
    layers: Sequence[LayerBytes] = ()
    folder: str = ""  # for files; empty: the system's for temporary ones

    def bytes(self, plan: Plan, node: str) -> int | None:
        """What may lie in memory under the plan; None: all."""
        if self.above or not self.memory:
            return self.above or None
        return max(0, self.memory - of_layers(plan.stages, self.layers, plan.target).get(node, 0))


ALL = Allowance()  # nothing goes to disk


class Spiller:
    """One thread, from the first tensor on that has to go: a node with memory enough has none."""

    def __init__(self, worker: Worker[Value], changed: Turn, allowance: Allowance) -> None:
        self.bytes = 0  # that were written, since the process started
        self._worker = worker
        self._changed = changed
        self._allowance = allowance
        self._plan: Plan | None = None  # for which ``_most`` was worked out
        self._most: int | None = None
        self._largest = 0  # bytes, of what instructions have taken and given
        # What lies on disk and is still kept; what its box forgets is gone from here by itself.
        self._spilled: weakref.WeakValueDictionary[Key, Value] = weakref.WeakValueDictionary()
        self._failed: int | None = None  # the step in which the disk took nothing more
        self._step, self._enough = -1, 0  # so many tensors are kept in the step before it is of use to look again
        self._told = False
        self._waiting: SimpleQueue[list[tuple[Key, Value]] | None] = SimpleQueue()
        self._busy = False
        self._thread: threading.Thread | None = None

    def look(self, *passed: Value | None) -> None:
        """After an instruction: what it took and gave. Called with the node's lock held."""
        worker, at, plan = self._worker, self._worker.at, self._worker.at.plan
        if plan is None:
            return
        if plan is not self._plan:
            self._plan, self._most = plan, self._allowance.bytes(plan, worker.node)
        if self._most is None:
            return
        for value in passed:
            if value is not None and value.size > self._largest:
                self._largest = value.size
        if self._busy or self._failed == at.version:
            return
        # First an estimate: with a thousand tensors there is no time to add them up after every instruction.
        count = len(worker.post.mailbox) + len(worker.post.outbox)
        if count * self._largest <= self._most or (count := count - len(self._spilled)) * self._largest <= self._most:
            return
        if self._step == at.version and count < self._enough:
            return
        chosen = [each for each in to_spill(worker, _size, self._spilled, self._most) if _is_worth_it(each[1])]
        self._step, self._enough = at.version, 0 if chosen else count + count // 8 + 1
        if chosen:
            self._busy = True
            self._waiting.put(chosen)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spill", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._waiting.put(None)

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            while waiting and not self._changed.stopped:
                if not self._move(*waiting.pop(0)):
                    waiting.clear()  # as long as a tensor is in here its memory is not free
            with self._changed:
                self._busy = False

    def _move(self, key: Key, value: Value) -> bool:
        """Whether the disk has taken the tensor."""
        try:
            with tempfile.TemporaryFile(dir=self._allowance.folder or None, buffering=0) as file:
                same = written(value, file)
        except (OSError, RuntimeError) as error:
            self._failed = key.step
            if not self._told:
                self._told = True
                log.warning(
                    "cannot write kept tensors to %s: %s; they stay in memory: make room there, or name another folder "
                    "with --spill-folder",
                    self._allowance.folder or tempfile.gettempdir(),
                    error,
                )
            return False
        with self._changed:
            self._worker.post.exchange(key, value, same)
            self._spilled[key] = same
            self.bytes += value.size
        return True


def _size(value: Value) -> int:
    return value.size


def _is_worth_it(value: Value) -> bool:
    return value.size >= LEAST and all(tensor.is_cpu and not strides_of(tensor) for _, tensor in value.tensors)


def written(value: Value, file: FileIO) -> Value:
    """The same value, with its tensors in the file. Raises OSError, and RuntimeError where nothing can be mapped."""
    places = []
    for _, tensor in value.tensors:
        file.seek(-(-file.tell() // ALIGNED) * ALIGNED)
        places.append(file.tell())
        data = bytes_of(tensor)
        while data:  # a disk that is full, or nearly, may take a part
            data = data[file.write(data) :]
    # The map is torch's: Python's own would keep a file descriptor for as long as it is there, and of these a process
    # has few. The file has no name but this one.
    memory = torch.from_file(f"/dev/fd/{file.fileno()}", shared=True, size=file.tell(), dtype=torch.uint8)
    tensors = []
    for (name, tensor), place in zip(value.tensors, places, strict=True):
        if tensor.numel():
            tensor = memory[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        tensors.append((name, tensor))
    return value.elsewhere(tuple(tensors))

"""Forwards and backwards that wait for tensor workers, while the compute thread does something else."""

# A node has one compute thread. An instruction on a graph is graph work and tensor work in turn, and the tensor work is
# done elsewhere, in its own time. So each such instruction has a thread here:
#
#     thread of an instruction     gathers    waits for a worker          sends on
#     the lock ``turn``            has it     gives it up                 has it again
#     the compute thread                      begins other instructions
#
# Whoever computes has the lock, the compute thread too. So nothing of torch's runs at the same time, and an optimizer's
# step never meets a gather. A forward and its backward read the same parameters: a step is applied only once all of its
# instructions are done, and what was given up meanwhile counts for nothing (``GraphStage.begin_step``).

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch

from culm.pipeline.tensors.task_pieces import as_value
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.graph.layer import GraphLayer, Runs
from culm.pipeline.user_code.graph.tasks import Task, do, trained
from culm.stage_server.tensor_work.desk import Answer, Desk, Shapes

T = TypeVar("T")


class Lock(Protocol):
    """One that may be taken several times by the same thread."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


MOST_THREADS = 128  # instructions of one node that are under way at once; further ones wait for a thread


class Aside:
    """``desk``: who asks for tensor work; the edition counts how often parameters have changed on this node."""

    def __init__(self, turn: Lock, layer: Callable[[int], torch.nn.Module]) -> None:
        """``turn``: the lock of whoever computes; ``layer``: the module of a layer that is held."""
        self._turn = turn
        self._layer = layer
        self.edition = 0
        # Of parameters, by layer and edition: made with the lock held, and read by any thread. Those of the newest.
        self.copies: dict[tuple[int, int], Value] = {}
        self.desk: Desk | None = None
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="instruction")

    @property
    def is_wanted(self) -> bool:
        """Whether a worker is there."""
        return self.desk is not None and self.desk.has_workers

    def start(self, work: Callable[[], T]) -> "Future[T]":
        """Does it with the lock held, but for what it waits for."""

        def run() -> T:
            with self._turn:
                return work()

        return self._threads.submit(run)

    def close(self) -> None:
        if self.desk is not None:
            self.desk.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def runs(self, index: int, seed_of: Callable[[str], int]) -> Runs:
        """Tensor work of a layer, done by workers. ``seed_of``: by function."""

        def run(layer: GraphLayer, function: str, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
            tensors = (*arguments, *trained(layer))
            found: torch.Tensor = _Elsewhere.apply(  # type: ignore[no-untyped-call]
                self, index, function, seed_of(function), len(arguments), *tensors
            )
            return found

        return run

    def call(self, task: Task, shapes: Shapes) -> Answer:
        """Gives the lock up, which the caller has, until the answer is here. ``shapes``: see ``Desk.call``."""
        assert self.desk is not None, "nobody can be asked"
        edition = self.edition
        if (task.layer, edition) not in self.copies:
            kept = {of: copy for of, copy in self.copies.items() if of[1] == edition}
            parameters = enumerate(self._layer(task.layer).parameters())
            copy = as_value({i: parameter.detach().clone() for i, parameter in parameters})
            self.copies = {**kept, (task.layer, edition): copy}
        self._turn.release()
        try:
            return self.desk.call(task, edition, shapes)
        finally:
            self._turn.acquire()

    def do_here(self, task: Task) -> Answer:
        """On this node."""
        with self._turn:
            module = self._layer(task.layer)
            assert isinstance(module, GraphLayer), f"layer {task.layer} is no layer on a graph"
            return do(module, task)


class _Elsewhere(torch.autograd.Function):
    """A layer's function, as tasks: one for the forward, one for the backward."""

    @staticmethod
    def forward(
        context: Any, aside: Aside, layer: int, function: str, seed: int, count: int, *tensors: torch.Tensor
    ) -> torch.Tensor:
        arguments = tensors[:count]
        wanted = tuple(context.needs_input_grad[5 : 5 + count])
        context.save_for_backward(*arguments)
        context.aside, context.shapes = aside, [tensor.shape for tensor in tensors]
        context.task = (layer, function, seed, wanted)
        task = Task(layer=layer, function=function, seed=seed, wanted=wanted, arguments=arguments)
        return aside.call(task, context.shapes)[0]

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer, function, seed, wanted = context.task
        arguments = context.saved_tensors
        task = Task(
            layer=layer, function=function, seed=seed, wanted=wanted, arguments=arguments, gradient=gradients[0]
        )
        found = context.aside.call(task, context.shapes)
        return (None,) * 5 + tuple(found.get(i) for i in range(len(context.shapes)))

"""Where tensor work is asked for and done: threads that need an answer on one side, streams of workers on the other."""

# Threads of one call:
#
#     a thread of ``Aside``      puts the task on the board, and waits for the answer
#     a thread of the server     one for each stream of a worker: takes a task, sends it, waits for the answer
#
# Whoever waits looks at the board from time to time: what is left to the server it does itself. Answers that come late
# are dropped. A worker is told of no one's state: it has its task, and the parameters that it asks for.

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import grpc
import torch

from culm.pipeline.resources import TensorWorkers
from culm.pipeline.tensors.digests import Corrupted
from culm.pipeline.tensors.task_pieces import as_value, assembled, by_number, pieces_of
from culm.pipeline.tensors.values import Value
from culm.pipeline.text import told
from culm.pipeline.user_code.graph.tasks import Task
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import tensor_work_pb2 as pb
from culm.protos.tensor_work_pb2_grpc import TensorWorkServicer
from culm.stage_server.tensor_work.board import Board

log = logging.getLogger("culm.tensor_work")
LOOK_SECONDS = 0.05  # at most between two looks at what is late

Answer = Mapping[int, torch.Tensor]
Shapes = Sequence[torch.Size]


class Failed(Exception):
    """The user's code has raised on a worker. The text says what."""


class Desk(TensorWorkServicer):
    """The service, and ``call`` for those who need an answer. Any thread may call."""

    def __init__(
        self,
        job_toml: str,
        fingerprint: str,
        hardware: str,
        parameters: Callable[[int, int], Value | None],
        do_here: Callable[[Task], Answer],
    ) -> None:
        """``hardware``: empty where any is taken. ``parameters``: a layer's, of an edition; None: they have changed.
        ``do_here``: does a task on this server.
        """
        self._job_toml, self._fingerprint, self._hardware = job_toml, fingerprint, hardware
        self._parameters, self._do_here = parameters, do_here
        self._changed = threading.Condition()  # guards all that follows
        self._board = Board()
        # That somebody waits for, with the edition of their parameters, and the shapes of arguments and parameters.
        self._tasks: dict[int, tuple[Task, int, Shapes]] = {}
        self._answers: dict[int, Answer | Failed] = {}
        self._numbers = count()
        self._workers = count()
        self._closed = False
        self._seconds = self._gigabyte_seconds = 0.0  # that workers have had tasks, and the same times their memory

    @property
    def has_workers(self) -> bool:
        return bool(self._board.workers)

    def facts(self) -> TensorWorkers:
        """Who works, and how much so far."""
        with self._changed:
            return TensorWorkers(
                workers=len(self._board.workers),
                waiting=self._board.waiting,
                done=self._board.done,
                repeated=self._board.relaunched,
                seconds=self._seconds,
                gigabyte_seconds=self._gigabyte_seconds,
            )

    def close(self) -> None:
        """Workers are let go; who waits gets its answer from this server."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- who needs an answer ----------------------------------------------------------------------------------------

    def call(self, task: Task, edition: int, shapes: Shapes) -> Answer:
        """What the task gives, whoever does it. ``shapes``: of its arguments, then of the layer's parameters.

        Raises Failed where the user's code raises.
        """
        kind = (task.layer, task.function, task.gradient is not None)
        with self._changed:
            number = next(self._numbers)
            self._tasks[number] = task, edition, shapes
            self._board.put(number, kind, time.monotonic())
            self._changed.notify_all()
            while number not in self._answers:
                if self._closed or self._board.is_left(number, time.monotonic()):
                    self._board.withdraw(number)
                    break
                self._changed.wait(min(LOOK_SECONDS, self._board.patience(number)))
            del self._tasks[number]
            found = self._answers.pop(number, None)
        if isinstance(found, Failed):
            raise found
        return found if found is not None else self._do_here(task)

    # ---- workers ----------------------------------------------------------------------------------------------------

    def GetTensorJob(self, request: pb.GetTensorJobRequest, context: grpc.ServicerContext) -> pb.GetTensorJobResponse:  # noqa: N802
        return pb.GetTensorJobResponse(job_toml=self._job_toml)

    def GetParameters(  # noqa: N802
        self, request: pb.GetParametersRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetParametersResponse]:
        value = self._parameters(request.layer, request.edition)
        if value is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "these parameters have changed since")
        for piece in pieces_of(value):
            yield pb.GetParametersResponse(piece=piece)

    def Work(self, request_iterator: Iterator[pb.WorkRequest], context: Any) -> Iterator[pb.WorkResponse]:  # noqa: N802
        first = next(request_iterator, None)
        if first is None or not first.HasField("offer"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a stream begins with an offer")
            return
        if why := self._unfit(first.offer):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        with self._changed:
            worker = next(self._workers)
            self._board.workers[worker] = None
            self._changed.notify_all()
        log.info("the tensor worker %s offers itself, with %d MB", first.offer.worker, first.offer.memory_bytes >> 20)
        try:
            yield from self._serve(worker, request_iterator, first.offer.memory_bytes, context.is_active)
        except (grpc.RpcError, ValueError, Corrupted) as error:
            log.info("the stream of the tensor worker %s ends: %s", first.offer.worker, told(str(error)))
        finally:
            with self._changed:
                self._board.given_up(worker)
                self._changed.notify_all()

    def _unfit(self, offer: pb.Offer) -> str:
        if offer.protocol_version != PROTOCOL_VERSION:
            return (
                f"this server speaks version {PROTOCOL_VERSION} of the protocol, and the worker another one: update it"
            )
        if offer.fingerprint != self._fingerprint:
            return "the worker has other code of the job than this server: give both the same files"
        if self._hardware and offer.hardware != self._hardware:
            what = f"the worker computes on {told(offer.hardware)}, and this server on {self._hardware}"
            return f'{what}, which gives other bits: set job.hardware = "any" to take it'
        return ""

    def _serve(
        self, worker: int, requests: Iterator[pb.WorkRequest], memory: int, is_there: Callable[[], bool]
    ) -> Iterator[pb.WorkResponse]:
        while (taken := self._next(worker, is_there)) is not None:
            number, task, edition, shapes = taken
            began = time.monotonic()
            arguments = task.arguments if task.gradient is None else (*task.arguments, task.gradient)
            yield pb.WorkResponse(
                task=pb.TensorTask(
                    layer=task.layer,
                    function=task.function,
                    backward=task.gradient is not None,
                    seed=task.seed,
                    edition=edition,
                    wanted=task.wanted,
                )
            )
            for piece in pieces_of(as_value(dict(enumerate(arguments)))):
                yield pb.WorkResponse(piece=piece)
            answer = _answer(requests, task, shapes)
            with self._changed:
                seconds = time.monotonic() - began
                self._seconds += seconds
                self._gigabyte_seconds += seconds * memory / 1e9
                if answer is None:
                    self._board.given_up(worker, gone=False)
                elif self._board.answered(number, worker, time.monotonic()) and number in self._tasks:
                    self._answers[number] = answer
                self._changed.notify_all()

    def _next(self, worker: int, is_there: Callable[[], bool]) -> tuple[int, Task, int, Shapes] | None:
        """What the worker does next; None: it is to go, or has gone."""
        with self._changed:
            while not self._closed and is_there():
                number = self._board.take(worker, time.monotonic())
                if number is not None:
                    return number, *self._tasks[number]
                self._changed.wait(LOOK_SECONDS)
        return None


def _next(requests: Iterator[pb.WorkRequest]) -> pb.WorkRequest:
    """Raises ValueError where none comes: within a generator nobody may see a StopIteration."""
    request = next(requests, None)
    if request is None:
        raise ValueError("it has ended without an answer")
    return request


def _answer(requests: Iterator[pb.WorkRequest], task: Task, shapes: Shapes) -> Answer | Failed | None:
    """What the worker says to its task; None: nothing. Raises ValueError for what cannot be one."""
    first = _next(requests)
    if first.HasField("no_answer"):
        return None
    if first.HasField("failed"):
        return Failed(told(first.failed.why))
    waiting = [first]

    def next_piece() -> pb.TensorPiece:
        request = waiting.pop() if waiting else _next(requests)
        if not request.HasField("answer"):
            raise ValueError("a worker says something else in the middle of its answer")
        return request.answer

    found = by_number(assembled(next_piece))
    if why := misfit(task, shapes, found):
        raise ValueError(why)
    return found


def misfit(task: Task, shapes: Shapes, found: Answer) -> str:
    """Why this is no answer to the task; empty: it may be one. ``shapes``: of its arguments, then of parameters."""
    kind = task.arguments[0].dtype
    if task.gradient is None:
        rows = task.arguments[0].shape[0]
        if list(found) != [0] or found[0].dim() == 0 or found[0].shape[0] != rows or found[0].dtype != kind:
            return f"it answers a forward of {rows} rows with {[(list(x.shape), x.dtype) for x in found.values()]}"
        return ""
    for place, gradient in found.items():
        if not 0 <= place < len(shapes) or gradient.shape != shapes[place] or gradient.dtype != kind:
            return f"it gives {gradient.dtype} {list(gradient.shape)} as the gradient of place {place}"
    return ""

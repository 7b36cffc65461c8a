"""Where tensor work is asked for and done: threads that need an answer on one side, streams of workers on the other."""

# Threads of one call:
#
#     a thread of ``Aside``      puts the task on the board, and waits for the answer
#     a thread of the server     one for each stream of a worker: takes a task, sends it, waits for the answer
#
# Whoever waits looks at the board from time to time: what is left to the server it does itself. Answers that come late
# are dropped. A worker is told of no one's state: it has its task, and the parameters that it asks for.

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
import torch

from culm.pipeline.plan_bounds import number_problem
from culm.pipeline.resources import TensorWorkers
from culm.pipeline.tensors.digests import Corrupted
from culm.pipeline.tensors.task_pieces import as_value, assembled, by_number, pieces_of
from culm.pipeline.tensors.values import Value
from culm.pipeline.text import told
from culm.pipeline.user_code.graph.tasks import Task
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import tensor_work_pb2 as pb
from culm.protos.tensor_work_pb2_grpc import TensorWorkServicer
from culm.stage_server.tensor_work.bill import Bill
from culm.stage_server.tensor_work.board import Board

log = logging.getLogger("culm.tensor_work")
LOOK_SECONDS = 0.25  # between two looks at what is late, and at who is gone
# What a worker may say: the server's heartbeats tell the sums, and the coordinator refuses one that cannot be.
MOST_MEMORY = 1 << 50  # bytes: more than any machine has
MOST_SECONDS = 1e9  # for a task: 30 years

# Where the part of a worker differs from the server's.
_UNLIKE = {
    "code": "the worker has other code of the job than this server: give both the same files",
    "versions": "the worker has other versions of Python or torch than this server: install the same ones",
    "configuration": "the worker's layers are set otherwise than this server's, as by a dropout rate: let their "
    "constructors go by the job's arguments alone, not by the machine or its environment",
}

Answer = Mapping[int, torch.Tensor]
Shapes = Sequence[torch.Size]


class Failed(str):
    """Why a worker has not done its task, in words."""

    __slots__ = ()


@dataclass(slots=True)
class Call:
    """Somebody waits for a task's answer. ``edition``: of its parameters; ``shapes``: of arguments and parameters."""

    task: Task
    edition: int
    shapes: Shapes
    answered: threading.Condition
    answer: Answer | Failed | None = None


class Desk(TensorWorkServicer):
    """The service, and ``call`` for those who need an answer. Any thread may call."""

    def __init__(
        self,
        job_toml: str,
        fingerprint: str,
        parts: Mapping[str, str],
        hardware: str,
        parameters: Callable[[int, int], Value | None],
        do_here: Callable[[Task], Answer],
    ) -> None:
        """``parts``: as a worker tells them (``parts_of_worker``); ``fingerprint``: for one that tells none.
        ``hardware``: empty where any is taken; then layers may be set otherwise, too. ``parameters``: a layer's, of an
        edition; None: they have changed. ``do_here``: does a task on this server.
        """
        self._job_toml, self._fingerprint, self._parts, self._hardware = job_toml, fingerprint, parts, hardware
        self._parameters, self._do_here = parameters, do_here
        self._process = os.urandom(8)
        self._turn = threading.Lock()  # guards all that follows
        # Each thread is woken for what it waits for alone: to wake all of them takes longer than a small task.
        self._work = threading.Condition(self._turn)  # workers without a task wait for one
        self._more = threading.Condition(self._turn)  # and those that ask ahead for another one
        self._board = Board()
        self._calls: dict[int, Call] = {}  # that somebody waits for
        self._numbers = count()
        self._workers = count()
        self._closed = False
        self._seconds = 0.0  # that workers have had tasks
        self._bill = Bill()

    @property
    def has_workers(self) -> bool:
        return bool(self._board.workers)

    def facts(self) -> TensorWorkers:
        """Who works, and how much so far."""
        with self._turn:
            return TensorWorkers(
                workers=len(self._board.workers),
                waiting=self._board.waiting,
                done=self._board.done,
                repeated=self._board.relaunched,
                seconds=self._seconds,
                gigabyte_seconds=self._bill.gigabyte_seconds(time.monotonic()),
                waited_seconds=self._board.waited_seconds,
                share=self._bill.share(),
            )

    def close(self) -> None:
        """Workers are let go; who waits gets its answer from this server."""
        with self._turn:
            self._closed = True
            self._wake_all()

    def _wake_all(self) -> None:
        """Whoever waits looks again. Called with the lock held."""
        self._work.notify_all()
        self._more.notify_all()
        for call in self._calls.values():
            call.answered.notify()

    # ---- who needs an answer ----------------------------------------------------------------------------------------

    def call(self, task: Task, edition: int, shapes: Shapes) -> Answer:
        """What the task gives, whoever does it. ``shapes``: of its arguments, then of the layer's parameters.

        Raises what the user's code raises.
        """
        kind = (task.layer, task.function, task.gradient is not None)
        call = Call(task, edition, shapes, threading.Condition(self._turn))
        with self._turn:
            number = next(self._numbers)
            self._calls[number] = call
            self._board.put(number, kind, time.monotonic())
            (self._more if self._board.has_more else self._work).notify()
            while call.answer is None:
                if self._closed or self._board.is_left(number, time.monotonic()):
                    self._board.withdraw(number, time.monotonic())
                    break
                call.answered.wait(LOOK_SECONDS)
            del self._calls[number]
        if isinstance(call.answer, Failed):  # if it is the code's fault it raises here as well, where its place is told
            log.warning("a tensor worker could not do its task: %s; this server does it", call.answer)
        return self._do_here(task) if call.answer is None or isinstance(call.answer, Failed) else call.answer

    # ---- workers ----------------------------------------------------------------------------------------------------

    def GetTensorJob(self, request: pb.GetTensorJobRequest, context: grpc.ServicerContext) -> pb.GetTensorJobResponse:  # noqa: N802
        return pb.GetTensorJobResponse(job_toml=self._job_toml, process=self._process)

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
            log.warning("the tensor worker %s is refused: %s", told(first.offer.worker), why)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        with self._turn:
            worker = next(self._workers)
            if first.offer.ahead:
                self._board.ahead.add(worker)
            else:
                self._board.workers[worker] = None
                self._bill.came(worker, first.offer.memory_bytes, max(1, first.offer.servers), time.monotonic())
        name, megabytes = told(first.offer.worker), first.offer.memory_bytes >> 20
        if not first.offer.ahead:
            log.info("the tensor worker %s offers itself, with %d MB", name, megabytes)
        try:
            yield from self._serve(worker, request_iterator, context.is_active)
        except (grpc.RpcError, ValueError, Corrupted) as error:
            log.info("the stream of the tensor worker %s ends: %s", name, told(str(error)))
        finally:
            with self._turn:
                self._board.given_up(worker)
                self._bill.went(worker, time.monotonic())
                self._wake_all()

    def _unfit(self, offer: pb.Offer) -> str:
        if offer.protocol_version != PROTOCOL_VERSION:
            return (
                f"this server speaks version {PROTOCOL_VERSION} of the protocol, and the worker another one: update it"
            )
        if why := number_problem("the worker's memory in bytes", offer.memory_bytes, MOST_MEMORY):
            return why
        if not offer.parts and offer.fingerprint != self._fingerprint:
            return "the worker has other code of the job than this server: give both the same files"
        for part in sorted(self._parts.keys() | offer.parts.keys()) if offer.parts else ():
            unlike = offer.parts.get(part) != self._parts.get(part)  # also where one of them lacks a file
            if unlike and (self._hardware or part != "configuration"):
                return _UNLIKE.get(part, f"the worker's {part} is not that of this server: give both the same files")
        if self._hardware and offer.hardware != self._hardware:
            what = f"the worker computes on {told(offer.hardware)}, and this server on {self._hardware}"
            return f'{what}, which gives other bits: set job.hardware = "any" to take it'
        return ""

    def _serve(
        self, worker: int, requests: Iterator[pb.WorkRequest], is_there: Callable[[], bool]
    ) -> Iterator[pb.WorkResponse]:
        while (taken := self._next(worker, is_there)) is not None:
            number, call = taken
            task = call.task
            began = time.monotonic()
            arguments = task.arguments if task.gradient is None else (*task.arguments, task.gradient)
            first, *others = pieces_of(as_value(dict(enumerate(arguments))))
            yield pb.WorkResponse(
                task=pb.TensorTask(
                    layer=task.layer,
                    function=task.function,
                    backward=task.gradient is not None,
                    seed=task.seed,
                    edition=call.edition,
                    wanted=task.wanted,
                    first=first,
                )
            )
            for piece in others:
                yield pb.WorkResponse(piece=piece)
            answer, seconds = _answer(requests, task, call.shapes)
            with self._turn:
                self._seconds += min(seconds, time.monotonic() - began)
                if self._board.answered(number, worker, time.monotonic()):
                    call.answer = answer
                    call.answered.notify()

    def _next(self, worker: int, is_there: Callable[[], bool]) -> "tuple[int, Call] | None":
        """What the worker does next; None: it is to go, or has gone."""
        waits = self._more if worker in self._board.ahead else self._work
        with self._turn:
            while not self._closed and is_there():
                number = self._board.take(worker, time.monotonic())
                if number is not None:
                    return number, self._calls[number]
                waits.wait(LOOK_SECONDS)
        return None


def _next(requests: Iterator[pb.WorkRequest]) -> pb.WorkRequest:
    """Raises ValueError where none comes: within a generator nobody may see a StopIteration."""
    request = next(requests, None)
    if request is None:
        raise ValueError("it has ended without an answer")
    return request


def _answer(requests: Iterator[pb.WorkRequest], task: Task, shapes: Shapes) -> tuple[Answer | Failed, float]:
    """What the worker says to its task, and its seconds. Raises ValueError for what cannot be an answer."""
    first = _next(requests)
    if why := number_problem("its seconds for the task", first.seconds, MOST_SECONDS):
        raise ValueError(why)
    if first.HasField("no_answer"):
        return Failed("it asked for the layer's parameters too late"), first.seconds
    if first.HasField("failed"):
        return Failed(told(first.failed.why)), first.seconds
    waiting = [first]

    def next_piece() -> pb.TensorPiece:
        request = waiting.pop() if waiting else _next(requests)
        if not request.HasField("answer"):
            raise ValueError("a worker says something else in the middle of its answer")
        return request.answer

    found = by_number(assembled(next_piece))
    if why := misfit(task, shapes, found):
        raise ValueError(why)
    return found, first.seconds


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

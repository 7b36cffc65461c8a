"""One graph server, as a tensor worker sees it: it offers itself, takes a task, answers, takes the next."""

# What a worker has of a server, and may lose at any moment: the parameters that it has asked for last, by layer, each
# of one edition. A task of another edition has it ask anew. Where the server's have changed since, nobody waits for the
# answer any more, and none is given.

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

import grpc
import torch

from culm.pipeline.rpc.tls import open_channel
from culm.pipeline.tensors.digests import Corrupted
from culm.pipeline.tensors.task_pieces import as_value, assembled, by_number, pieces_of
from culm.pipeline.user_code.graph.layer import GraphLayer
from culm.pipeline.user_code.graph.tasks import FUNCTIONS, Task
from culm.pipeline.user_code.imports import RAISED, described
from culm.protos import tensor_work_pb2 as pb
from culm.protos.tensor_work_pb2_grpc import TensorWorkStub

log = logging.getLogger("culm.tensor_worker")

Answer = Mapping[int, torch.Tensor]


class Computes(Protocol):
    """The worker's own part: it has the job's layers, and does one task at a time."""

    def offer(self, job_toml: str) -> pb.Offer:
        """What the worker says of itself to a server of this job. Raises JobError."""
        ...

    def module(self, layer: int) -> GraphLayer:
        """A layer for this server alone, whose parameters are to be set. Raises JobError."""
        ...

    def do(self, module: GraphLayer, task: Task) -> Answer: ...


class ServerLink:
    """A worker's tie to one server: a stream of tasks, and another one that asks ahead.

    So a task's arguments travel while the task before is done. Tasks are done one at a time, whichever stream they are
    of, with ``self._turn`` held.
    """

    def __init__(self, address: str, computes: Computes, done: Callable[[float], None]) -> None:
        """``done``: called with the seconds of each task."""
        self._address, self._computes, self._done = address, computes, done
        self._layers: dict[int, tuple[int, GraphLayer]] = {}  # by number: the edition of its parameters
        self._of = b""  # the server's process that has counted these editions
        self._turn = threading.Lock()

    def serve(self, until: float = math.inf) -> None:
        """Until the server lets it go, or this moment of ``time.monotonic``: what it does then it ends.

        Raises grpc.RpcError where the server is gone or refuses, JobError where the job does not run here, ValueError
        or Corrupted for a task that cannot be one.
        """
        with open_channel(self._address, "stage") as channel:
            stub = TensorWorkStub(channel)
            server = stub.GetTensorJob(pb.GetTensorJobRequest())
            if server.process != self._of:
                self._of, self._layers = server.process, {}
            offer = self._computes.offer(server.job_toml)
            ahead = pb.Offer()
            ahead.CopyFrom(offer)
            ahead.ahead = True
            stream, second = _Stream(stub, offer), _Stream(stub, ahead)
            thread = threading.Thread(target=self._serve_ahead, args=(stub, second), daemon=True)
            timer = threading.Timer(min(until - time.monotonic(), threading.TIMEOUT_MAX), self._end, [stream, second])
            timer.daemon = True
            timer.start()
            thread.start()
            try:
                self._serve(stub, stream)
            except grpc.RpcError:
                if time.monotonic() < until:
                    raise
            finally:
                timer.cancel()
                stream.end()
                second.end()
                thread.join()

    def _end(self, *streams: "_Stream") -> None:
        """Its time is up: what it does it ends, and nothing else begins."""
        with self._turn:
            for stream in streams:
                stream.end()

    def _serve_ahead(self, stub: TensorWorkStub, stream: "_Stream") -> None:
        try:
            self._serve(stub, stream)
        except (grpc.RpcError, ValueError, Corrupted, StopIteration) as error:
            # The other stream says the same, if it matters.
            log.debug("the stream that asks ahead ends: %s", error)
        finally:
            stream.end()

    def _serve(self, stub: TensorWorkStub, stream: "_Stream") -> None:
        for response in stream.responses:
            if response.HasField("task"):
                asked = response.task
                task = _task(asked, chain([asked.first], (response.piece for response in stream.responses)))
                with self._turn:
                    answer = self._answer(stub, asked, task)
                stream.say(answer)

    def _answer(self, stub: TensorWorkStub, asked: pb.TensorTask, task: Task) -> list[pb.WorkRequest]:
        """Does one task. What is said of it."""
        began = time.perf_counter()
        module = self._module(stub, asked)
        if module is None:
            return [pb.WorkRequest(no_answer=pb.NoAnswer())]
        try:
            found = self._computes.do(module, task)
        except RAISED as error:
            what = f"layer {task.layer}'s {task.function} raised {described(error)}"
            return [pb.WorkRequest(failed=pb.TaskFailed(why=what))]
        seconds = time.perf_counter() - began
        self._done(seconds)
        return [pb.WorkRequest(answer=piece, seconds=seconds) for piece in pieces_of(as_value(found))]

    def _module(self, stub: TensorWorkStub, asked: pb.TensorTask) -> GraphLayer | None:
        """The layer with the parameters of the task; None: they have changed since."""
        edition, module = self._layers.get(asked.layer, (None, None))
        if module is None:
            module = self._computes.module(asked.layer)
        if edition != asked.edition:
            pieces = stub.GetParameters(pb.GetParametersRequest(layer=asked.layer, edition=asked.edition))
            try:
                given = by_number(assembled(lambda: next(pieces).piece))
            except grpc.RpcError as error:
                code = getattr(error, "code", None)
                if callable(code) and code() is grpc.StatusCode.NOT_FOUND:
                    return None
                raise
            with torch.no_grad():
                for number, parameter in enumerate(module.parameters()):
                    parameter.copy_(given[number])
            self._layers[asked.layer] = asked.edition, module
        return module


class _Stream:
    """One Work stream: what is said on it, and what comes."""

    def __init__(self, stub: TensorWorkStub, offer: pb.Offer) -> None:
        self._requests: queue.SimpleQueue[pb.WorkRequest | None] = queue.SimpleQueue()  # None: no more
        self.say([pb.WorkRequest(offer=offer)])
        self.responses: Any = stub.Work(iter(self._requests.get, None))

    def say(self, requests: Iterable[pb.WorkRequest]) -> None:
        for request in requests:
            self._requests.put(request)

    def end(self) -> None:
        """May be called more than once, from any thread."""
        self._requests.put(None)
        self.responses.cancel()


def _task(asked: pb.TensorTask, pieces: Iterator[pb.TensorPiece]) -> Task:
    """Raises ValueError or Corrupted for what cannot be one."""
    arguments = list(by_number(assembled(lambda: next(pieces))).values())
    gradient = arguments.pop() if asked.backward else None
    if asked.function not in FUNCTIONS or len(asked.wanted) != len(arguments):
        raise ValueError(f"a task {asked.function[:40]!r} with {len(arguments)} arguments")
    return Task(
        layer=asked.layer,
        function=asked.function,
        seed=asked.seed,
        wanted=tuple(asked.wanted),
        arguments=tuple(arguments),
        gradient=gradient,
    )

"""One graph server, as a tensor worker sees it: it offers itself, takes a task, answers, takes the next."""

# What a worker has of a server, and may lose at any moment: the parameters that it has asked for last, by layer, each
# of one edition. A task of another edition has it ask anew. Where the server's have changed since, nobody waits for the
# answer any more, and none is given.

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

import grpc
import torch

from culm.pipeline.rpc.tls import open_channel
from culm.pipeline.tensors.task_pieces import as_value, assembled, by_number, pieces_of
from culm.pipeline.user_code.graph.layer import GraphLayer
from culm.pipeline.user_code.graph.tasks import FUNCTIONS, Task
from culm.pipeline.user_code.imports import RAISED, described
from culm.protos import tensor_work_pb2 as pb
from culm.protos.tensor_work_pb2_grpc import TensorWorkStub

Answer = Mapping[int, torch.Tensor]
Requests = queue.SimpleQueue[pb.WorkRequest | None]  # on their way to the server; None: no more


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
    """``serve`` until the stream ends; a link is of one thread."""

    def __init__(self, address: str, computes: Computes, done: Callable[[float], None]) -> None:
        """``done``: called with the seconds of each task."""
        self._address, self._computes, self._done = address, computes, done
        self._layers: dict[int, tuple[int, GraphLayer]] = {}  # by number: the edition of its parameters
        self._of = b""  # the server's process that has counted these editions
        self._busy = threading.Lock()  # while a task is done

    def serve(self, until: float = math.inf) -> int:
        """Until the server lets it go, or with the first task that ends after this moment of ``time.monotonic``.

        Returns how many tasks it has done. Raises grpc.RpcError where the server is gone or refuses, JobError where the
        job does not run here.
        """
        count = 0
        requests: Requests = queue.SimpleQueue()  # of this stream alone
        with open_channel(self._address, "stage") as channel:
            stub = TensorWorkStub(channel)
            server = stub.GetTensorJob(pb.GetTensorJobRequest())
            if server.process != self._of:
                self._of, self._layers = server.process, {}
            requests.put(pb.WorkRequest(offer=self._computes.offer(server.job_toml)))
            responses = stub.Work(iter(requests.get, None))
            timer = threading.Timer(min(until - time.monotonic(), threading.TIMEOUT_MAX), self._end, [responses])
            timer.daemon = True
            timer.start()
            try:
                for response in responses:
                    if response.HasField("task"):
                        with self._busy:
                            self._take(stub, response.task, responses, requests)
                        count += 1
                        if time.monotonic() > until:
                            break
            except grpc.RpcError:
                if time.monotonic() < until:
                    raise
            finally:
                timer.cancel()
                requests.put(None)
        return count

    def _end(self, responses: Any) -> None:
        """Its time is up: what it does it ends, and nothing else begins."""
        with self._busy:
            responses.cancel()

    def _take(
        self, stub: TensorWorkStub, asked: pb.TensorTask, responses: Iterator[pb.WorkResponse], requests: Requests
    ) -> None:
        """Does one task, and answers it."""
        began = time.perf_counter()
        pieces = chain([asked.first], (response.piece for response in responses))
        arguments = list(by_number(assembled(lambda: next(pieces))).values())
        gradient = arguments.pop() if asked.backward else None
        if asked.function not in FUNCTIONS or len(asked.wanted) != len(arguments):
            raise ValueError(f"a task {asked.function[:40]!r} with {len(arguments)} arguments")
        task = Task(
            layer=asked.layer,
            function=asked.function,
            seed=asked.seed,
            wanted=tuple(asked.wanted),
            arguments=tuple(arguments),
            gradient=gradient,
        )
        module = self._module(stub, asked)
        if module is None:
            requests.put(pb.WorkRequest(no_answer=pb.NoAnswer()))
            return
        try:
            found = self._computes.do(module, task)
        except RAISED as error:
            what = f"layer {task.layer}'s {task.function} raised {described(error)}"
            requests.put(pb.WorkRequest(failed=pb.TaskFailed(why=what)))
            return
        for piece in pieces_of(as_value(found)):
            requests.put(pb.WorkRequest(answer=piece))
        self._done(time.perf_counter() - began)

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

"""The tensor worker's process: it finds the graph servers of a run, and works for each of them."""

# Threads: the main one asks the coordinator from time to time which servers there are, and ends with the run; one more
# for each server, which waits for tasks. One task is computed at a time, whoever gave it.

import logging
import os
import signal
import threading
import time
from dataclasses import dataclass

import grpc
import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, parse_job
from culm.pipeline.log_lines import last_line
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.located import located
from culm.pipeline.rpc.tls import open_channel, why_silent
from culm.pipeline.tensors.digests import Corrupted
from culm.pipeline.user_code.fingerprint import parts_of_worker
from culm.pipeline.user_code.graph.layer import GraphLayer
from culm.pipeline.user_code.graph.tasks import Task, do
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2, tensor_work_pb2
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.tensor_worker import runtime
from culm.tensor_worker.runtime import Asked
from culm.tensor_worker.server import Answer, ServerLink

log = logging.getLogger("culm.tensor_worker")
ASK_SECONDS = 1.0  # between two looks for servers, and between two tries to reach one
ENDED = ("done", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Times in seconds."""

    coordinator: str
    name: str
    memory_bytes: int = 0  # that it is billed by; 0: nobody knows
    runtime: str = ""  # HOST:PORT of a function service's runtime interface; empty: it asks the coordinator
    connect_timeout: float = 30.0  # for a coordinator, the first one or the next


class TensorWorker:
    """``run`` gives the exit code."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._turn = threading.Lock()  # of whoever computes
        self._job_toml = ""
        self._source: ModelSource | None = None
        self._offer: tensor_work_pb2.Offer | None = None
        self._links: dict[str, threading.Thread] = {}  # by the server's address
        self._kept: dict[str, ServerLink] = {}  # the server of the last invocation
        self._wrong: JobError | None = None
        self._ended = threading.Event()
        self._heard = time.monotonic()  # when the coordinator last answered
        self.tasks = 0
        self.seconds = 0.0  # that tasks have taken, from their arrival to their answer

    def run(self) -> int:
        """Until the run is over, its coordinator is gone for too long, or ``stop``."""
        code = None
        while code is None and not self._ended.is_set():
            address = located(self._settings.coordinator)
            with open_channel(address, "coordinator") as channel:
                code = self._follow(CoordinatorStub(channel), address)
        if not code:
            log.info("this worker ends after %d tasks in %.1f s", self.tasks, self.seconds)
        return code or 0

    def _follow(self, stub: CoordinatorStub, address: str) -> int | None:
        """Works for the servers that the coordinator tells of. The exit code; None where it does not answer."""
        while not self._ended.is_set():
            try:
                status = stub.GetStatus(coordinator_pb2.GetStatusRequest(), timeout=10.0)
            except grpc.RpcError as error:
                if time.monotonic() - self._heard <= self._settings.connect_timeout:
                    self._ended.wait(ASK_SECONDS)
                    return None
                why = why_silent(address, "coordinator") or details(error)
                last_line("tensor-worker", f"no coordinator answers at {self._settings.coordinator}: {why}")
                return 2
            self._heard = time.monotonic()
            if status.phase in ENDED:
                return 0
            self._work_for({node.address for node in status.nodes})
            if self._wrong is not None:
                last_line("tensor-worker", str(self._wrong))
                return 2
            self._ended.wait(ASK_SECONDS)
        return 0

    def work_for(self, asked: Asked) -> dict[str, float]:
        """One invocation of a function service."""
        tasks, seconds = self.tasks, self.seconds
        link = self._kept.get(asked.server) or ServerLink(asked.server, self, self._note)
        self._kept = {asked.server: link}  # with the parameters that it has
        link.serve(asked.until)
        return {"tasks": self.tasks - tasks, "seconds": self.seconds - seconds}

    def stop(self) -> None:
        self._ended.set()

    def _work_for(self, addresses: set[str]) -> None:
        self._links = {address: link for address, link in self._links.items() if link.is_alive()}
        for address in sorted(addresses - self._links.keys()):
            link = threading.Thread(target=self._serve, args=(address,), name=f"server {address}", daemon=True)
            self._links[address] = link
            link.start()

    def _serve(self, address: str) -> None:
        try:
            ServerLink(address, self, self._note).serve()
        except (grpc.RpcError, ValueError, Corrupted, StopIteration) as error:
            why = details(error) if isinstance(error, grpc.RpcError) else str(error)
            code = getattr(error, "code", None)
            if callable(code) and code() is grpc.StatusCode.FAILED_PRECONDITION:  # it would be refused again
                self._wrong = JobError(why, f"the graph server at {address}", "start the worker again after that")
                return
            log.info("the stream to the graph server at %s ends: %s", address, why)
        except JobError as error:
            self._wrong = error

    def _note(self, seconds: float) -> None:
        self.tasks, self.seconds = self.tasks + 1, self.seconds + seconds

    # ---- culm.tensor_worker.server.Computes --------------------------------------------------------------------------

    def offer(self, job_toml: str) -> tensor_work_pb2.Offer:
        with self._turn:
            if self._offer is None or (self._settings.runtime and job_toml != self._job_toml):
                job = parse_job(job_toml, "the graph server's job")
                torch.set_num_threads(job.job.threads)
                self._job_toml, self._source = job_toml, ModelSource(job)
                self._offer = self._made(job, self._source)
            elif job_toml != self._job_toml:
                what = "two graph servers of one coordinator have other jobs"
                raise JobError(what, self._settings.coordinator, "start the worker again")
            self._offer.servers = max(1, len(self._links))
            return self._offer

    def _made(self, job: Job, source: ModelSource) -> tensor_work_pb2.Offer:
        if job.graph is None:
            raise JobError(
                "the run trains on no graph", self._settings.coordinator, "name a run whose job has a [graph]"
            )
        identity = source.identity()
        return tensor_work_pb2.Offer(
            worker=self._settings.name,
            protocol_version=PROTOCOL_VERSION,
            fingerprint=source.fingerprint(),
            hardware=identity.parts["hardware"],
            memory_bytes=self._settings.memory_bytes,
            parts=parts_of_worker(job, identity),
        )

    def module(self, layer: int) -> GraphLayer:
        assert self._source is not None, "the worker has offered itself before"
        with self._turn:
            found = self._source.build(layer)
        if not isinstance(found, GraphLayer):
            raise JobError(f"layer {layer} is no layer on a graph", "model.layers", "make it a culm.graphs.GraphLayer")
        return found

    def do(self, module: GraphLayer, task: Task) -> Answer:
        with self._turn:
            return do(module, task)


def main(settings: WorkerSettings) -> int:
    """Runs a tensor worker until it is told to stop. Exit codes as for every ``culm`` command."""
    worker = TensorWorker(settings)
    if settings.runtime:
        runtime.serve(settings.runtime, worker.work_for)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: worker.stop())
    code = worker.run()
    logging.shutdown()
    os._exit(code)  # it holds nothing: nobody waits for threads that wait, or compute, for a server

"""A tensor worker and a graph server meet others than they expect: another process, other code, and nonsense."""

import math
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch

from culm.pipeline.identity import Identity
from culm.pipeline.job import job_to_toml, with_values
from culm.pipeline.tensors.task_pieces import as_value, pieces_of
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.fingerprint import parts_of, parts_of_worker
from culm.pipeline.user_code.graph.layer import VERTEX, GraphLayer
from culm.pipeline.user_code.graph.tasks import Task, do
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import tensor_work_pb2 as pb
from culm.protos.tensor_work_pb2_grpc import TensorWorkStub, add_TensorWorkServicer_to_server
from culm.stage_server.tensor_work.desk import Desk
from culm.tensor_worker.server import ServerLink
from culm.tensor_worker.worker import TensorWorker, WorkerSettings
from tests.integration.test_tensor_workers import job

JOB = job_to_toml(job(steps=10, workers=0))
SOURCE = ModelSource(job(steps=10, workers=0))
EDITION = 1


def parts() -> dict[str, str]:
    return parts_of_worker(job(steps=10, workers=0), SOURCE.identity())


def offer() -> pb.Offer:
    """Of a worker that tells no parts.

    Made when it is sent: a process that has imported more of the job's packages has another fingerprint.
    """
    return pb.Offer(worker="w0", protocol_version=PROTOCOL_VERSION, fingerprint=SOURCE.fingerprint())


class Server:
    """A graph server's desk at an address, whose layer has all its parameters filled with one number."""

    def __init__(self, filled: float, hardware: str = "") -> None:
        layer = SOURCE.build(0)
        assert isinstance(layer, GraphLayer)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(filled)
        self.layer = layer
        self.here: list[Task] = []  # what it had to do itself
        self.desk = Desk(JOB, SOURCE.fingerprint(), parts(), hardware, self._parameters, self._do_here)

    def _parameters(self, layer: int, edition: int) -> Value | None:
        if (layer, edition) != (0, EDITION):
            return None
        return as_value(dict(enumerate(parameter.detach() for parameter in self.layer.parameters())))

    def _do_here(self, task: Task) -> dict[int, torch.Tensor]:
        self.here.append(task)
        return dict(do(self.layer, task))

    def ask(self) -> bool:
        """Has a task done; whether it is done rightly."""
        task = Task(layer=0, function=VERTEX, seed=1, wanted=(False,), arguments=(torch.ones(3, 8),))
        shapes = [torch.Size([3, 8]), *(parameter.shape for parameter in self.layer.parameters())]
        found = self.desk.call(task, EDITION, shapes)
        return torch.equal(found[0], do(self.layer, task)[0])

    @contextmanager
    def at(self, port: int) -> Iterator[int]:
        """Serves there; 0: at any port."""
        server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        add_TensorWorkServicer_to_server(self.desk, server)
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        try:
            yield port
        finally:
            self.desk.close()
            server.stop(grace=None).wait()


@contextmanager
def working(link: ServerLink, server: Server) -> Iterator[None]:
    """The link serves until the server closes; from the moment on at which the server has it."""
    thread = threading.Thread(target=link.serve, daemon=True)
    thread.start()
    while not server.desk.has_workers:
        assert thread.is_alive()
        thread.join(0.01)
    yield
    server.desk.close()
    thread.join()


def test_a_server_that_takes_anothers_address_is_asked_for_its_own_parameters() -> None:
    """A function that is invoked again keeps what it has of a server; another process counts other editions."""
    first, second = Server(0.5), Server(0.25)
    worker = TensorWorker(WorkerSettings(coordinator="", name="function"))
    with first.at(0) as port:
        link = ServerLink(f"127.0.0.1:{port}", worker, lambda seconds: None)
        with working(link, first):
            assert first.ask()
    with second.at(port), working(link, second):
        assert second.ask(), "computed with the parameters of the server before"
    assert not first.here + second.here


def test_a_function_goes_on_to_a_server_of_another_job() -> None:
    other = job(steps=11, workers=0)
    function = TensorWorker(WorkerSettings(coordinator="", name="function", runtime="127.0.0.1:1"))
    assert function.offer(JOB).worker == function.offer(job_to_toml(other)).worker == "function"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"protocol_version": 0}, "version"),
        ({"fingerprint": "another"}, "other code"),
        ({"memory_bytes": (1 << 64) - 1}, "memory in bytes is"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused_in_words(wrong: dict[str, object], why: str) -> None:
    server = Server(0.5)
    told = offer()
    told.MergeFrom(pb.Offer(**wrong))  # type: ignore[arg-type]
    if "protocol_version" in wrong:
        told.protocol_version = PROTOCOL_VERSION + 1
    with server.at(0) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.RpcError, match=why) as refused:
            next(TensorWorkStub(channel).Work(iter([pb.WorkRequest(offer=told)])))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert not server.desk.has_workers
        assert server.ask()


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("code", "other code of the job"),
        ("versions", "other versions of Python or torch"),
        ("configuration", "layers are set otherwise than this server's, as by a dropout rate"),
        ("model", "the worker's model is not that of this server"),
        ("job", "the worker's job is not that of this server"),
    ],
)
def test_a_worker_of_which_one_part_differs_is_told_which(part: str, why: str) -> None:
    """Such as one whose environment gives another dropout rate."""
    server = Server(0.5, hardware="this one")
    told = pb.Offer(worker="w0", protocol_version=PROTOCOL_VERSION, hardware="this one", parts=parts())
    told.parts[part] = "another"
    with server.at(0) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.RpcError, match=why) as refused:
            next(TensorWorkStub(channel).Work(iter([pb.WorkRequest(offer=told)])))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_what_layers_are_set_to_does_not_count_where_any_hardware_is_taken() -> None:
    told = pb.Offer(protocol_version=PROTOCOL_VERSION, hardware="another one", parts=parts())
    told.parts["configuration"] = "another"
    assert not Server(0.5).desk._unfit(told)


def test_a_worker_needs_no_file_of_the_graph(tmp_path: Path) -> None:
    path, asked = tmp_path / "edges.txt", job(steps=10, workers=0)
    assert asked.graph is not None
    made = with_values(asked, {"graph.args": {**asked.graph.args, "path": str(path)}})
    here = Identity(parts_of(made, []))
    path.write_text("0 1")
    there = Identity(parts_of(made, []))
    assert there.parts != here.parts, "nodes compare it"
    assert parts_of_worker(made, there) == parts_of_worker(made, here)
    told = pb.Offer(protocol_version=PROTOCOL_VERSION, fingerprint="without that file", parts=parts())
    assert not Server(0.5).desk._unfit(told)


def answers(*found: torch.Tensor) -> list[pb.TensorPiece]:
    return list(pieces_of(as_value(dict(enumerate(found)))))


def _without_digest() -> pb.TensorPiece:
    (piece,) = answers(torch.ones(3, 16))
    piece.header.ClearField("digest")
    return piece


def _flipped() -> pb.TensorPiece:
    (piece,) = answers(torch.ones(3, 16))
    piece.payload = b"\x01" + piece.payload[1:]
    return piece


def _headless() -> pb.TensorPiece:
    return pb.TensorPiece(payload=b"1234")


def _huge() -> pb.TensorPiece:
    (piece,) = answers(torch.ones(3, 16))
    piece.header.tensors[0].shape[0] = 1 << 62
    return piece


def _named() -> pb.TensorPiece:
    (piece,) = pieces_of(Value((("output", torch.ones(3, 16)),)))
    return piece


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(pb.WorkRequest(), id="nothing"),
        pytest.param(
            pb.WorkRequest(offer=pb.Offer(worker="w0", protocol_version=PROTOCOL_VERSION)), id="another offer"
        ),
        pytest.param(pb.WorkRequest(failed=pb.TaskFailed(why="\x1b[2J" * 9000)), id="control characters"),
        pytest.param(pb.WorkRequest(no_answer=pb.NoAnswer()), id="no answer, again and again"),
        pytest.param(pb.WorkRequest(answer=_without_digest()), id="no digest"),
        pytest.param(pb.WorkRequest(answer=_flipped()), id="a bit that flipped"),
        pytest.param(pb.WorkRequest(answer=_headless()), id="no header"),
        pytest.param(pb.WorkRequest(answer=_huge()), id="more than there is memory"),
        pytest.param(pb.WorkRequest(answer=_named()), id="a name that is no number"),
        pytest.param(pb.WorkRequest(answer=answers(torch.ones(2, 16))[0]), id="too few rows"),
        *(
            pytest.param(pb.WorkRequest(answer=answers(torch.ones(3, 16))[0], seconds=seconds), id=f"{seconds} seconds")
            for seconds in (math.nan, math.inf, -1.0)
        ),
    ],
)
def test_nonsense_for_an_answer_has_the_server_do_its_work_itself(said: pb.WorkRequest) -> None:
    server = Server(0.5)
    requests: queue.SimpleQueue[pb.WorkRequest | None] = queue.SimpleQueue()
    with server.at(0) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        responses = TensorWorkStub(channel).Work(iter(requests.get, None))
        requests.put(pb.WorkRequest(offer=offer()))

        def peer() -> None:
            try:
                for response in responses:
                    if response.HasField("task"):
                        requests.put(said)
            except grpc.RpcError:
                pass

        thread = threading.Thread(target=peer, daemon=True)
        thread.start()
        while not server.desk.has_workers:
            assert thread.is_alive()
            thread.join(0.01)
        assert server.ask()
        assert len(server.here) == 1
        # They go with the node's heartbeats: the coordinator would end the stream of one that tells no number.
        assert math.isfinite(server.desk.facts().seconds)
        requests.put(None)
        server.desk.close()
        thread.join()


def test_a_worker_takes_no_task_that_its_layers_do_not_have() -> None:
    worker = TensorWorker(WorkerSettings(coordinator="", name="w0"))
    server = Server(0.5)
    wrong = replace(
        Task(layer=0, function=VERTEX, seed=1, wanted=(False,), arguments=(torch.ones(3, 8),)), function="__init__"
    )
    with server.at(0) as port:
        link = ServerLink(f"127.0.0.1:{port}", worker, lambda seconds: None)
        caught: list[BaseException] = []

        def serve() -> None:
            try:
                link.serve()
            except ValueError as error:
                caught.append(error)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        while not server.desk.has_workers:
            assert thread.is_alive()
            thread.join(0.01)
        caller = threading.Thread(target=lambda: _quietly(server, wrong), daemon=True)
        caller.start()
        thread.join()
        server.desk.close()
        caller.join()
    assert "__init__" in str(caught[0])


def _quietly(server: Server, task: Task) -> None:
    with suppress(TypeError):  # it is what the function says to a tensor, where the server does it itself
        server.desk.call(task, EDITION, [torch.Size([3, 8])])

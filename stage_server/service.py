"""The stage server process: it attends the coordinator, builds the job's model and works until told to stop."""

# The main thread waits for a Welcome, builds the job's model, and is the compute thread from then on. The threads of
# ``Orders`` attend the coordinator from the start, so heartbeats flow while the model is built.
#
# How the process ends:
#
#     what happens                                     exit code    the coordinator is told
#     dismissed for good, or SIGINT                    0            that it leaves
#     SIGTERM                                          0            that it is to go; it hands over first
#     dismissed for a reason that is its own fault     2            knows already
#     the job's file or code is wrong                  2            last words: which work, and why (rule 16)
#     anything else raised, on any thread              1            last words
#     no coordinator, or one that refuses it, and      2            -
#       none has welcomed it before
#     the coordinator has gone for too long            1            -
#     it holds nothing of use: dismissed to join       none: the same process id goes on as a new incarnation, which
#       anew, passed over, or its samples are untold     holds nothing (rule 13). After a signal to end: 0
#
# The first of these that happens decides (``_end``), and the main thread carries it out. It may be stuck in the user's
# code; then ``_force`` ends the process after FORCE_SECONDS.

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from culm.pipeline.errors import JobError
from culm.pipeline.job import parse_job
from culm.pipeline.log_lines import Facts, last_line, speak_as
from culm.pipeline.messages import machine_to_proto, tensor_workers_to_proto
from culm.pipeline.patience import Patience
from culm.pipeline.rpc.admission import MOST_STREAMS, THREADS, AdmissionInterceptor
from culm.pipeline.rpc.channel import server_options
from culm.pipeline.rpc.exposition import Exposition
from culm.pipeline.rpc.roles import RoleInterceptor
from culm.pipeline.rpc.rpc_metrics import Interceptor, RpcMetrics
from culm.pipeline.rpc.tls import add_port
from culm.pipeline.tensors.values import Value
from culm.pipeline.text import told
from culm.pipeline.user_code.exits import caught
from culm.pipeline.user_code.fingerprint import parts_of_worker
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2
from culm.protos.tensor_work_pb2_grpc import add_TensorWorkServicer_to_server
from culm.stage_server.address import advertised
from culm.stage_server.availability import allowance_for, availability
from culm.stage_server.compute.allocator import keep_pages
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import device_for
from culm.stage_server.compute.loading import Untold, parts_of, samples_told
from culm.stage_server.departure import Departure
from culm.stage_server.faults import Faults
from culm.stage_server.last_words import START, reason_of
from culm.stage_server.node import Node
from culm.stage_server.notices import NoticeWatcher, make_sources
from culm.stage_server.one_machine.local_streams import LocalServer, listen
from culm.stage_server.own_name import own_name
from culm.stage_server.signals import on_signals
from culm.stage_server.stage_settings import StageSettings
from culm.stage_server.starting_again import reap_ended, start_again
from culm.stage_server.streams.guard import run_of
from culm.stage_server.streams.orders import Orders
from culm.stage_server.streams.stream_bounds import job_problem
from culm.stage_server.streams.unfit import refuse
from culm.stage_server.tensor_work.desk import Desk
from culm.stage_server.watching.node_metrics import NodeCollector, Reading
from culm.stage_server.watching.process_watch import ProcessWatch
from culm.stage_server.worker.worker import Worker

log = logging.getLogger("culm.stage")

FORCE_SECONDS = 15.0  # for which a process that is to end waits for its compute thread
# How long a thread may keep the interpreter from another. Python's usual 5 ms are long for a tensor that waits to be
# sent: each hop from stage to stage would take them.
SWITCH_SECONDS = 0.0002
GRACE = 1.0  # seconds for streams to end when the server stops


class StageServer:
    """One incarnation of a node, from joining to leaving. ``run`` gives the process's exit code."""

    def __init__(self, settings: StageSettings) -> None:
        self._settings = settings
        self._name = settings.name or own_name()
        self._incarnation = time.time_ns() // 1000  # microseconds: higher than that of any process of this name before
        self._watch = ProcessWatch()
        self._exposition = Exposition(settings.metrics) if settings.metrics else None
        interceptors: list[grpc.ServerInterceptor] = [RoleInterceptor(settings.run), AdmissionInterceptor()]
        if self._exposition is not None:
            interceptors.append(Interceptor(RpcMetrics(self._exposition.registry)))
        pool = ThreadPoolExecutor(max_workers=THREADS)
        options = [*server_options(Patience(settings.patience)), *MOST_STREAMS]
        self._server = grpc.server(pool, interceptors=interceptors, options=options)
        self._address = self._listen(settings.listen)
        self._local: LocalServer | None = None  # once the model is built, where the system has such sockets
        self._welcome: pb.Welcome | None = None  # the first; this node computes by its job until it ends
        self._node: Node | None = None  # once the model is built
        self._available = pb.Available()
        # The coordinator may attach this node before its model is built, or while it is: whichever comes last announces
        # that the node is available. ``_turn`` guards ``_node`` and ``_announce``, so that exactly one of them does.
        self._announce: Callable[[list[pb.AttendRequest]], None] | None = None
        self._turn = threading.Lock()
        self._woken = threading.Event()  # something for the main thread: a job, or the end
        self._exit: int | None = None  # set once: the process is to end, with this code
        self._forced: threading.Timer | None = None  # ends the process if its compute thread does not
        self._ended = threading.Event()  # _exit is set
        self._error = ""
        self.join_anew = False
        # It stays true once it was said, and is repeated on every attaching: a coordinator that takes over has not
        # heard it.
        self._failed: pb.AttendRequest | None = None
        self._orders = Orders(
            settings.coordinator,
            self,
            settings.connect_timeout,
            self._hopeless,
            Patience(settings.patience),
            settings.coordinator_timeout,
            self._deserted,
        )
        self._departure = Departure(settings.drain_seconds, self._orders, self.stop, self._ended)
        self._notices = NoticeWatcher(make_sources(settings.notices), self._departure.noticed)

    @property
    def told(self) -> bool:
        """Whether a signal has told it to stop: then it joins nobody anew."""
        return self._departure.told

    def standing(self) -> Facts:
        """Who this is and where it stands, for the log; from any thread, without the lock."""
        node = self._node
        return {"node": self._name, **(node.standing() if node is not None else {})}

    def _listen(self, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        try:
            bound = add_port(self._server, listen, self._settings.insecure)
        except RuntimeError:
            bound = 0
        if not bound:
            raise OSError(f"cannot listen on {listen}: port {port} is in use; choose another with --listen")
        return advertised(host, bound, self._settings.advertise, self._settings.coordinator)

    def run(self) -> int:
        if self._exposition is not None:
            self._exposition.registry.register(NodeCollector(self._reading))
            self._exposition.announce()
        self._watch.begin()
        self._orders.start()
        self._notices.start()
        self._woken.wait()
        if self._exit is None and self._welcome is not None:
            self._work(self._welcome)
        self._notices.close()
        self._tell_rest()
        self._watch.close()
        parting = "its process joins anew" if self.join_anew else "it was told to stop"
        self._orders.close(parting if self._exit == 0 and not self._error else "")
        self._server.stop(GRACE)
        if self._local is not None:
            self._local.close()
        if self._exposition is not None:
            self._exposition.close()
        if self._forced is not None:
            self._forced.cancel()  # nothing was stuck: whoever called this goes on
        self._say_why()
        return self._exit or 0

    def _reading(self) -> Reading | None:
        return self._watch.reading(self._node.attendance.reading()) if self._node is not None else None

    def _say_why(self) -> None:
        if self._error and not self.join_anew:
            last_line("stage", told(self._error))

    def _work(self, welcome: pb.Welcome) -> None:
        """Takes part until told to stop. What raises ends the process, with last words to the coordinator."""
        try:
            with caught():
                node = self._take_part(welcome)
        except Exception as error:  # the job's file or code, or this machine: a module or a device is missing
            log.info("the job does not start on this node, which ends", exc_info=not isinstance(error, JobError))
            self._fail(START, reason_of(error), 2 if isinstance(error, JobError) else 1)
            return
        if self._exit is None:
            try:
                with caught():
                    node.run()
            except Untold as error:
                log.warning("this process ends or joins anew: %s", error)
                self._end(0, anew=True)
            except Exception as error:  # the user's code: the process ends, and another node takes over
                doing, why = node.doing() or "computing", reason_of(error)
                log.exception("%s raised: this node ends", doing)
                node.finish_checkpoint()  # before anybody hears of it: that may be the end of the run
                self._fail(node.failed_work(), f"{doing} raised {why}", 1, why)

    def _take_part(self, welcome: pb.Welcome) -> Node:
        """Builds what the job needs, and tells the coordinator that this node can be given work."""
        job = parse_job(welcome.job_toml, "the coordinator's job")
        torch.set_num_threads(job.job.threads)
        device = device_for(job)
        self._watch.meter.computes_on(device, self._settings.memory_bytes)
        source = ModelSource(job)
        # Before the graph is made: making it may import more of the job's code, and a worker makes none.
        of_code = source.fingerprint() if job.graph is not None else ""
        of_worker = parts_of_worker(job, source.identity()) if job.graph is not None else {}
        every = job.checkpoint.every if job.checkpoint is not None else 0
        eager = job.resilience.redundancy == "eager"
        worker: Worker[Value] = Worker(
            self._name, self._incarnation, job.schedule, job.job.steps, every, eager, job.resilience.ship_every
        )
        compute = Compute(job, source, device)
        compute.warm_up()
        memory, spill = self._settings.memory_bytes, self._settings.spill_above
        compute.told_samples = samples_told(job)
        available = availability(job, source, device, welcome, memory, spill, parts_of(compute.told_samples))
        worker.at.term, worker.at.ties, worker.at.evaluations = welcome.term, source.ties, job.evaluations
        worker.at.audit, worker.at.neighbours = job.resilience.audit, compute.neighbours
        patience = Patience(welcome.patience_seconds or self._settings.patience)
        run = run_of(job, source)
        faults = Faults(self._settings.kill_at)
        allowance = allowance_for(available, device, self._settings.spill_folder)
        node = Node(worker, compute, faults, job, patience, self._forfeit, self.broken, run, allowance)
        node.serve(self._server)
        if compute.aside is not None:
            hardware = available.parts["hardware"] if job.job.hardware == "same" else ""
            text, aside = welcome.job_toml, compute.aside
            aside.desk = Desk(text, of_code, of_worker, hardware, compute.parameters, aside.do_here)
            add_TensorWorkServicer_to_server(aside.desk, self._server)
        servicer = health.HealthServicer()
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        if self._settings.reflection:
            names = [d.full_name for d in stage_pb2.DESCRIPTOR.services_by_name.values()]
            reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], self._server)
        self._server.start()
        self._local = listen(self._address, node.receiver.serve_locally)
        node.attendance.begin(self._orders)
        with self._turn:
            self._node, self._available = node, available
            if self._announce is not None:
                node.attached(self._announce, self._available)
        return node

    def broken(self, error: BaseException) -> None:
        """Something raised that nobody expected, on any thread: the process ends with it."""
        name = threading.current_thread().name
        log.error("the thread %s raised: this node ends", name, exc_info=error)
        self._fail(None, f"the thread {name} raised {reason_of(error)}", 1)

    def _fail(self, work: pb.FailedWork | None, text: str, code: int, why: str = "") -> None:
        """Ends the process: ``text`` is its last line. The coordinator is told ``why`` (default: the same)."""
        if self._exit is not None or self._failed is not None:
            return
        self._failed = pb.AttendRequest(failed=pb.Failed(why=why or text, work=work))
        self._tell_rest()
        self._orders.last_words(self._failed)
        self._end(code, text)

    def _tell_rest(self) -> None:
        """The last lines of the log, if a coordinator listens: the process ends."""
        with suppress(Exception):  # what has ended the process may be the heartbeat itself
            for beat in self._watch.rest(self.heartbeat) if self._orders.attends else ():
                self._orders.report(pb.AttendRequest(heartbeat=beat))

    def _end(self, code: int, error: str = "", anew: bool = False) -> None:
        if self._exit is None:
            self.join_anew = self.join_anew or (anew and self._failed is None)
            self._exit, self._error = code, error
            self._ended.set()
            self._forced = threading.Timer(FORCE_SECONDS, self._force)
            self._forced.daemon = True
            self._forced.start()
        if self._node is not None:
            self._node.stop()
        self._woken.set()

    def _force(self) -> None:
        """The compute thread is stuck in the user's code, or in a device: the process ends without it."""
        log.error("the compute thread has not stopped within %g s: the process ends without it", FORCE_SECONDS)
        logging.shutdown()
        if self.join_anew and not self.told:
            start_again()
        self._say_why()
        os._exit(self._exit or 0)

    def _forfeit(self, why: str) -> None:
        """What this node holds is of no use: the process starts again. Called with the node's lock held."""
        log.error("what this node holds is of no use, so this process ends or joins anew: %s", why)
        # On a thread of its own: ``_end`` stops the node, which takes the lock that this caller holds.
        threading.Thread(target=partial(self._end, 0, anew=True), daemon=True).start()

    def stop(self) -> None:
        """Ends the process in order, without handing over: SIGINT."""
        self._departure.told = True
        self._end(0)

    def terminate(self) -> None:
        """SIGTERM: hands over first."""
        self._departure.terminate()

    def _hopeless(self, why: str) -> None:
        self._end(2, why)

    def _deserted(self, why: str) -> None:
        """No coordinator for longer than this node's own bound: a failure, but where it was told to stop anyhow."""
        self._end(0 if self.told else 1, "" if self.told else why)

    # ---- culm.stage_server.streams.orders.Listener -------------------------------------------------------------------

    def join(self) -> pb.Join:
        return pb.Join(
            node=self._name,
            incarnation=self._incarnation,
            address=self._address,
            pid=os.getpid(),
            zone=self._settings.machine.zone,
            machine=machine_to_proto(self._settings.machine),
            run=self._settings.run,
            protocol_version=PROTOCOL_VERSION,
            term=self._node.term() if self._node is not None else 0,
            takes_changes=True,
        )

    def attached(self, announce: Callable[[list[pb.AttendRequest]], None]) -> None:
        self._watch.attached()
        with self._turn:
            if self._node is not None:
                self._node.attached(announce, self._available)
            else:
                announce([])  # heartbeats flow while the model is built
                self._announce = announce
        if self._failed is not None:
            self._orders.report(self._failed)
        self._departure.repeat()

    def heartbeat(self) -> pb.Heartbeat:
        beat = self._node.attendance.heartbeat() if self._node is not None else pb.Heartbeat()
        beat = self._watch.added_to(beat) if self._orders.attends else beat
        if beat.HasField("resources") and self._node is not None and (seen := self._node.tensor_workers()) is not None:
            beat.resources.tensor_workers.CopyFrom(tensor_workers_to_proto(seen))
        return beat

    def order(self, order: pb.AttendResponse) -> None:
        body = order.WhichOneof("body")
        if body == "welcome":
            if self._welcome is None:
                self._welcome = order.welcome
                self._woken.set()
            else:
                refuse(job_problem(self._welcome.job_toml, order.welcome.job_toml))
        elif body == "dismiss" and self._exit is None and self._failed is None:  # one that leaves is not called back
            self.join_anew = order.dismiss.join_anew
            goodbye = not order.dismiss.why or order.dismiss.goodbye
            log.info("the coordinator dismisses this node: %s", order.dismiss.why or "it gives no reason")
            self._end(0 if goodbye or self.join_anew else 2, "" if goodbye else order.dismiss.why)
        elif self._node is not None:
            self._node.order(order)


def main(settings: StageSettings) -> int:
    """Runs a stage server until it is told to stop. Exit codes as for every ``culm`` command."""
    reap_ended()
    keep_pages()
    try:
        server = StageServer(settings)
        Faults(settings.kill_at)
    except (OSError, ValueError) as error:
        last_line("stage", str(error))
        return 2
    speak_as(server.standing)
    sys.setswitchinterval(SWITCH_SECONDS)
    threading.excepthook = lambda raised: server.broken(raised.exc_value or SystemExit())
    on_signals({signal.SIGTERM: server.terminate, signal.SIGINT: server.stop})
    code = server.run()
    if server.join_anew and not server.told:
        log.info("this process starts again: it joins anew, holding nothing")
        logging.shutdown()
        start_again()
    return code

"""One run of a job on a local cluster, from its start to its final weights."""

import math
import time
from collections.abc import Callable

import grpc

from culm.local.cluster import LocalCluster
from culm.local.event_file import EventFile
from culm.local.gathering import gather
from culm.local.last_checkpoint import LastCheckpoint
from culm.pipeline.checkpoints.digest import weights_sha256
from culm.pipeline.money.codec import Entry, Reader
from culm.pipeline.money.kinds import Committed, Done, Evaluated, Failed, Lost, Measured, Planned, Recovered, RolledBack
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect
from culm.terminal.outcome import DONE, Outcome, RunFailed

PROMPT_SECONDS = 0.05  # between two looks, where something has to happen at a certain step
POLL_SECONDS = 0.25

Disturber = Callable[[CoordinatorStub, pb.GetStatusResponse, list[tuple[str, float]]], None]
Watcher = Callable[[pb.GetStatusResponse, list[pb.ListEventsResponse], Outcome], None]


def train(cluster: LocalCluster, watch: Watcher, disturb: Disturber | None = None) -> Outcome:
    """Follows a started cluster to the end of its job and gathers the weights. Raises RunFailed."""
    outcome = Outcome()
    channel, stub = connect(cluster.address, patience=10.0)
    seen = 0
    begun: float | None = None
    ended: float | None = None  # of the last step; both in unix time. Writing the last checkpoint does not count
    last = LastCheckpoint(cluster.job)
    failed: RunFailed | None = None
    lost: dict[str, Entry] = {}
    reader = Reader("the losses that are shown")
    kept = EventFile(cluster.folder)
    with channel:
        while True:
            cluster.check()
            try:
                status = cleaned(stub.GetStatus(pb.GetStatusRequest(), timeout=10.0))
                events = list(map(cleaned, stub.ListEvents(pb.ListEventsRequest(from_sequence=seen + 1), timeout=10.0)))
            except grpc.RpcError:  # the coordinator was killed: the cluster starts it again
                time.sleep(POLL_SECONDS)
                continue
            seen = events[-1].sequence if events else seen
            kept.add(events)
            entries: list[Entry] = []
            events = [event for event in events if reader.read(event, entries.append)]
            for entry in entries:
                _take(entry, outcome, lost, cluster)
                match entry.event:
                    case Planned() if begun is None:
                        begun = entry.time
                    case Done():
                        ended = entry.time
                    case RolledBack():
                        ended = None
                    case Failed():
                        failed = RunFailed(entry.text, entry.event.code)
            if begun is not None:
                outcome.seconds = (ended or time.time()) - begun
            if cluster.job.checkpoint is not None and outcome.losses and status.checkpoint > outcome.first_step:
                outcome.checkpoint = status.checkpoint_folder
            is_trained = status.step == status.steps and status.phase in ("done", "failed")
            if is_trained:
                last.look(status, time.monotonic())
            if status.phase == "done":
                # In place of how long the nodes stay, and how to fetch from them: this command fetches, and ends them.
                outcome.stopped_early = status.stopped_early
                status.detail = f"{status.stopped_early or DONE}{last.in_words(status)}"
            if status.workers_wanted and status.phase == "running":
                cluster.want_workers(status.workers_wanted)
            watch(status, events, outcome)
            if disturb is not None:
                disturb(stub, status, cluster.deaths)
            if status.phase == "failed" and not is_trained:
                raise failed or RunFailed(status.detail, 2)
            if status.phase == "failed" and (
                last.is_whole(status) or last.given_up(status, time.monotonic()) or not cluster.has_nodes
            ):
                # The status says where the final weights are, which was not known when it failed.
                raise RunFailed(status.detail, failed.code if failed is not None else 1)
            if cluster.names and not cluster.has_nodes and status.phase != "done":
                if status.HasField("pause"):  # they were let go at a limit
                    raise RunFailed(f"{status.detail}; go on with --resume, and with a higher limit or none")
                raise RunFailed(f"every node has ended; see their logs in {cluster.folder}")
            if status.phase == "done" and status.step == status.steps:
                if not outcome.losses:  # it went on from a checkpoint with which it ends
                    outcome.first_step = status.steps
                outcome.checkpoint_fault = last.given_up(status, time.monotonic())
                if last.is_whole(status) or outcome.checkpoint_fault:
                    break
            time.sleep(POLL_SECONDS if disturb is None else PROMPT_SECONDS)
        outcome.layers = gather(stub, cluster.check)
    outcome.sha256 = weights_sha256(outcome.layers)
    return outcome


def _take(entry: Entry, outcome: Outcome, lost: dict[str, Entry], cluster: LocalCluster) -> None:
    event = entry.event
    if isinstance(event, Committed):
        step = event.step - outcome.first_step
        if not outcome.losses:
            outcome.first_step, step = step, 0
        del outcome.losses[step:]  # after a rollback a step is committed again
        # The log lacks commits of a coordinator that was killed while Redis was away.
        outcome.losses.extend([math.nan] * (step - len(outcome.losses)))
        outcome.losses.append(event.loss)
    elif isinstance(event, Measured):
        outcome.metrics[event.step] = dict(sorted(event.metrics.items()))
    elif isinstance(event, Evaluated):
        outcome.evaluations[event.step] = {"loss": event.loss, **dict(sorted(event.metrics.items()))}
    elif isinstance(event, Lost):
        lost[event.node] = entry
    elif isinstance(event, Recovered):
        detect = event.detect_ms
        at = lost[event.node].time if event.node in lost else None
        deaths = [death for name, death in cluster.deaths if name == event.node and at is not None and death <= at]
        if deaths and at is not None:  # the launcher saw the death itself, which is more exact than the last heartbeat
            detect = (at - deaths[-1]) * 1e3
        outcome.losses_of_nodes.append(
            {
                "node": event.node,
                "stage": event.stage,
                "step": event.step,
                "detect_ms": round(detect, 1),
                "resume_ms": event.resume_ms,
                "redone": event.redone,
            }
        )

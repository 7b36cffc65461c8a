"""One run of a job on a local cluster, from its start to its final weights."""

import math
import time
from collections.abc import Callable

import grpc

from culm.client import connect
from culm.cluster import LocalCluster
from culm.gathering import gather
from culm.outcome import Outcome, RunFailed
from pipeline.digest import weights_sha256
from pipeline.job import Job
from protos import coordinator_pb2 as pb
from protos.coordinator_pb2_grpc import CoordinatorStub

PROMPT_SECONDS = 0.05  # between two looks where something is to be done at a certain step
POLL_SECONDS = 0.25
CHECKPOINT_SECONDS = 60.0


Disturber = Callable[[CoordinatorStub, pb.GetStatusResponse, list[tuple[str, float]]], None]
Watcher = Callable[[pb.GetStatusResponse, list[pb.ListEventsResponse], Outcome], None]


def train(cluster: LocalCluster, watch: Watcher, disturb: Disturber | None = None) -> Outcome:
    """Follows a started cluster to the end of its job and gathers the weights. Raises RunFailed."""
    outcome = Outcome()
    channel, stub = connect(cluster.address, patience=10.0)
    seen = 0
    begun: float | None = None
    done_at: float | None = None
    lost: dict[str, pb.ListEventsResponse] = {}
    with channel:
        while True:
            cluster.check()
            try:
                status = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
                events = list(stub.ListEvents(pb.ListEventsRequest(from_sequence=seen + 1), timeout=10.0))
            except grpc.RpcError:  # the coordinator was killed: the cluster starts it again
                time.sleep(POLL_SECONDS)
                continue
            seen = events[-1].sequence if events else seen
            for event in events:
                if event.kind == "plan" and begun is None:
                    begun = event.time
                _take(event, outcome, lost, cluster)
            if begun is not None:
                outcome.seconds = (events[-1].time if events and events[-1].kind == "done" else time.time()) - begun
            watch(status, events, outcome)
            if disturb is not None:
                disturb(stub, status, cluster.deaths)
            if status.phase == "failed":
                raise RunFailed(status.detail, 2)
            if status.phase == "done" and status.step == status.steps:
                done_at = done_at or time.monotonic()
                if _checkpointed(status, cluster.job, done_at):
                    break
            time.sleep(POLL_SECONDS if disturb is None else PROMPT_SECONDS)
        outcome.layers = gather(stub, cluster.check)
    outcome.sha256 = weights_sha256(outcome.layers)
    return outcome


def _checkpointed(status: pb.GetStatusResponse, job: Job, done_at: float) -> bool:
    """Whether the last checkpoint is whole, if the job asks for one; it is waited for, but not for ever."""
    if job.checkpoint is None or status.steps % job.checkpoint.every or status.checkpoint == status.steps:
        return True
    return time.monotonic() - done_at > CHECKPOINT_SECONDS


def _take(
    event: pb.ListEventsResponse, outcome: Outcome, lost: dict[str, pb.ListEventsResponse], cluster: LocalCluster
) -> None:
    fields = event.fields
    if event.kind == "commit":
        step = int(fields["step"]) - outcome.first_step
        if not outcome.losses:
            outcome.first_step, step = step, 0
        del outcome.losses[step:]
        # Commits of a coordinator that was killed while Redis was away may be on no record.
        outcome.losses.extend([math.nan] * (step - len(outcome.losses)))
        outcome.losses.append(float.fromhex(fields["loss_hex"]))
    elif event.kind == "lost":
        lost[fields["node"]] = event
    elif event.kind == "recovered":
        node = fields["node"]
        detect = float(fields["detect_ms"])
        deaths = [at for name, at in cluster.deaths if name == node and at <= lost[node].time]
        if deaths:  # seen by the launcher itself, more closely than by the last heartbeat
            detect = (lost[node].time - deaths[-1]) * 1e3
        outcome.losses_of_nodes.append(
            {
                "node": node,
                "stage": int(fields["stage"]),
                "step": int(fields["step"]),
                "detect_ms": round(detect, 1),
                "resume_ms": float(fields["resume_ms"]),
                "redone": int(fields["redone"]),
            }
        )

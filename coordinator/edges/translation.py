"""From the decisions' commands to orders on the wire, and from nodes' messages to reports."""

# Both directions are here, so decisions know no messages. What a node says is checked before it comes here (rule 18:
# ``report_bounds``). A node's own words go through ``told``, since they end up in logs and on screens. A message that
# this version does not know becomes None and is passed over: a node of a later version may send it.
#
# A number that a node may leave out is 0 in its message. In the report it is None, or the value that says nothing.

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator.failures import Work
from culm.pipeline.audits import Audited
from culm.pipeline.checkpoints.manifest import File
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.messages import identity_from_proto, resources_from_proto, times_from_proto
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan
from culm.pipeline.plan_codec import (
    best_so_far_from_proto,
    bookmark_from_proto,
    change_of,
    commit_from_proto,
    commit_to_proto,
    plan_from_proto,
    plan_to_proto,
)
from culm.pipeline.text import told
from culm.protos import coordinator_pb2 as pb


def addressee(command: cmd.Command) -> str | None:
    """The node that the order is for; None: all that attend."""
    return command.node if isinstance(command, cmd.SendPlan | cmd.SendCommit | cmd.Ask | cmd.Dismiss) else None


def by_stage(nodes: Iterable[str], plan: Plan | None) -> dict[str, int]:
    """The first stage that each node owns, those first that own stage 0; a node that owns none comes last."""
    stages = plan.stages if plan is not None else ()
    owned = {owner: s for s, stage in reversed(list(enumerate(stages))) for owner in stage.distinct_owners}
    found = {node: owned.get(node, len(stages)) for node in nodes}
    return dict(sorted(found.items(), key=itemgetter(1)))


def plan_in(command: cmd.Command) -> Plan | None:
    """The plan that the order brings, if any."""
    if isinstance(command, cmd.Publish | cmd.SendPlan):
        return command.plan
    if isinstance(command, cmd.SendCommit):
        return command.commit.next_plan
    return command.next_plan if isinstance(command, cmd.Commit) else None


def commit_order(commit: cmd.Commit, before: Plan | None = None) -> pb.AttendResponse:
    # The plan that comes with a commit travels within it: no node can adopt that plan before it applies the step.
    order = commit_to_proto(replace(commit, next_plan=None))
    if commit.next_plan is not None:
        order.next_plan.CopyFrom(_plan(commit.next_plan, before))
    return pb.AttendResponse(commit=order)


def _plan(plan: Plan, before: Plan | None) -> pb.Plan:
    # Of a thousand stages a lost node moves two or three; a whole plan of them would go to every node.
    change = change_of(plan, before) if before is not None else None
    return change if change is not None else plan_to_proto(plan)


def order_of(command: cmd.Command, before: Plan | None = None) -> pb.AttendResponse | None:
    """The order, None for a command that is none; ``before``: the plan that was sent last, if a change will do."""
    if isinstance(command, cmd.Publish | cmd.SendPlan):
        return pb.AttendResponse(plan=_plan(command.plan, before))
    if isinstance(command, cmd.Commit):
        return commit_order(command, before)
    if isinstance(command, cmd.SendCommit):
        return commit_order(command.commit, before)
    if isinstance(command, cmd.Ask):
        return pb.AttendResponse(ask=pb.Ask())
    if isinstance(command, cmd.Dismiss):
        dismiss = pb.Dismiss(why=command.why, join_anew=command.join_anew, goodbye=command.goodbye)
        return pb.AttendResponse(dismiss=dismiss)
    return None  # carried out here, such as Persist


def _audited(said: pb.Audited) -> Audited:
    return Audited(said.pipeline, said.stage, said.microbatch, said.digest)


def _failed(node: str, incarnation: int, failed: pb.Failed) -> reports.NodeFailed:
    if not failed.HasField("work"):
        return reports.NodeFailed(node, incarnation, told(failed.why))  # ends this node alone (rule 16)
    w = failed.work
    work = Work(w.what, w.step if w.HasField("step") else None, w.first_layer, w.end_layer) if w.what else None
    return reports.NodeFailed(node, incarnation, told(failed.why), work)


def _layer_bytes(said: pb.Available) -> tuple[LayerBytes, ...]:
    boundaries = said.layer_boundary_bytes or [0] * len(said.layer_state_bytes)
    return tuple(map(LayerBytes, said.layer_state_bytes, said.layer_gradient_bytes, boundaries))


def report_of(node: str, incarnation: int, request: pb.AttendRequest) -> reports.Report | None:
    """The report in a message; None for a Join, which opens the stream, and for what this version does not know."""
    body = request.WhichOneof("body")
    if body == "available":
        a = request.available
        return reports.Available(
            node=node,
            incarnation=incarnation,
            layer_costs=tuple(float(x) for x in a.layer_parameters),
            layer_seconds=tuple(a.layer_seconds),
            unmeasured=told(a.unmeasured),
            layer_bytes=_layer_bytes(a),
            memory_bytes=a.memory_bytes,
            spill_above=a.spill_above,
            fingerprint=a.fingerprint,
            era=a.era,
            version=a.version,
            holds_state=a.holds_state,
            plan=plan_from_proto(a.plan) if a.HasField("plan") else None,
            last_commit=commit_from_proto(a.last_commit) if a.HasField("last_commit") else None,
            layers=frozenset(a.layers),
            identity=identity_from_proto(a),
        )
    if body == "built":
        return reports.Built(node, incarnation, dict(request.built.initial))
    if body == "heartbeat":
        h = request.heartbeat
        return reports.Heartbeat(
            node=node,
            incarnation=incarnation,
            version=h.version,
            instruction=told(h.instruction),
            finished=h.finished,
            running_seconds=h.running_seconds,
            median_seconds=h.median_seconds,
            deviation_seconds=h.deviation_seconds,
            samples=h.samples,
            slowness=h.slowness or 1.0,  # not said: as fast as it was
            times=times_from_proto(h.times),
            sent_bytes=dict(h.sent_bytes),
            bytes_per_second=h.bytes_per_second,
            loading_seconds=h.loading_seconds,
            resources=resources_from_proto(h.resources) if h.HasField("resources") else None,
        )
    if body == "ready":
        r = request.ready
        norms, tallies = tuple(r.squared_norms), tuple(r.tallies)
        return reports.Ready(
            node=node,
            incarnation=incarnation,
            era=r.era,
            step=r.step,
            stage=r.stage,
            first_layer=r.first_layer,
            squared_norms=norms,
            tallies=tallies,
            redone=r.redone,
            states=tuple(r.states),
            audited=tuple(map(_audited, r.audited)),
            taken=tuple(map(_audited, r.taken)),
            order=(r.term, r.generation) if r.term else None,
        )
    if body == "resumed":
        return reports.Resumed(node, incarnation, request.resumed.generation, request.resumed.stage)
    if body == "peer_lost":
        p = request.peer_lost
        return reports.PeerLost(node, incarnation, p.node, p.incarnation, told(p.why))
    if body == "failed":
        return _failed(node, incarnation, request.failed)
    if body == "draining":
        return reports.Draining(
            node, told(request.draining.why), request.draining.seconds_left or None, request.draining.told
        )
    if body == "caught_up":
        c = request.caught_up
        return reports.CaughtUp(
            node=node,
            incarnation=incarnation,
            era=c.era,
            first_layer=c.first_layer,
            end_layer=c.end_layer,
            version=c.version,
            order=(c.term, c.generation),
        )
    if body == "read":
        return reports.Read(node, incarnation, bookmark_from_proto(request.read))
    if body == "warned":
        return reports.Warned(node, told(request.warned.why))
    if body == "saved":
        # By layer: one file of the model and one of the rest, in the order in which the node names them.
        files: dict[int, tuple[File, ...]] = {}
        for f in request.saved.files:
            files[f.layer] = (*files.get(f.layer, ()), File(f.name, f.size, f.sha256))
        said = request.saved
        return reports.Saved(
            node=node,
            incarnation=incarnation,
            era=said.era,
            step=said.step,
            files=files,
            loss=said.loss,
            best_so_far=best_so_far_from_proto(said.best_so_far) if said.HasField("best_so_far") else None,
        )
    if body == "checkpoint_bad":
        b = request.checkpoint_bad
        return reports.CheckpointBad(node, Origin(b.step, b.folder, b.sha256), told(b.why))
    if body == "unread":
        u = request.unread
        return reports.Unread(
            node=node,
            incarnation=incarnation,
            era=u.era,
            origin=Origin(u.step, u.folder, u.sha256),
            why=told(u.why),
            absent=u.absent,
            damaged_layer=u.damaged_layer if u.HasField("damaged_layer") else None,
            being_read=u.being_read,
        )
    if body == "checkpoint_fault":
        return reports.CheckpointFault(node, request.checkpoint_fault.step, told(request.checkpoint_fault.why))
    if body == "leave":
        return reports.Left(node, incarnation, told(request.leave.why))
    return None

"""Between the wire's messages and the domain's values."""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from culm.pipeline.commit import Commit
from culm.pipeline.identity import Identity
from culm.pipeline.keys import Key, Kind
from culm.pipeline.machine import Machine
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Member, Plan, Redundancy, StagePlan, Stages, Standby
from culm.pipeline.times import TimeSplit
from culm.protos import coordinator_pb2, tensor_pb2

_KINDS: dict[int, Kind] = {kind: kind for kind in Kind}  # Kind(number) takes many times as long


def key_to_proto(key: Key) -> tensor_pb2.Key:
    kind: Any = key.kind  # a number, as the message wants it
    return tensor_pb2.Key(
        era=key.era, step=key.step, pipeline=key.pipeline, kind=kind, stage=key.stage, index=key.index
    )


def key_from_proto(key: tensor_pb2.Key) -> Key:
    return Key(key.era, key.step, key.pipeline, _KINDS.get(key.kind) or Kind(key.kind), key.stage, key.index)


def stages_to_proto(stages: Stages) -> list[coordinator_pb2.StagePlan]:
    return [
        coordinator_pb2.StagePlan(
            first_layer=stage.first_layer,
            end_layer=stage.end_layer,
            owners=stage.owners,
            standbys=[coordinator_pb2.Standby(node=b.node, hot=b.hot) for b in stage.standbys],
        )
        for stage in stages
    ]


def _stages_from_proto(stages: Iterable[coordinator_pb2.StagePlan]) -> Stages:
    return tuple(
        StagePlan(s.first_layer, s.end_layer, tuple(s.owners), tuple(Standby(b.node, b.hot) for b in s.standbys))
        for s in stages
    )


def members_to_proto(members: Iterable[Member]) -> list[coordinator_pb2.Member]:
    return [
        coordinator_pb2.Member(node=m.node, incarnation=m.incarnation, address=m.address, zone=m.zone) for m in members
    ]


def plan_to_proto(plan: Plan) -> coordinator_pb2.Plan:
    order = plan_without_holders(plan)
    order.stages.extend(stages_to_proto(plan.stages))
    order.members.extend(members_to_proto(plan.members.values()))
    return order


def plan_without_holders(plan: Plan) -> coordinator_pb2.Plan:
    """The plan but for its stages and members."""
    chosen = plan.redundancy
    return coordinator_pb2.Plan(
        redundancy=None
        if chosen is None
        else coordinator_pb2.Redundancy(eager=chosen.eager, ship_every=chosen.ship_every),
        term=plan.term,
        generation=plan.generation,
        era=plan.era,
        step=plan.step,
        reason=plan.reason,
        origin_step=plan.origin.step,
        origin=plan.origin.folder,
        origin_sha256=plan.origin.sha256,
        target=stages_to_proto(plan.target),
        leader=plan.leader,
    )


def plan_from_proto(plan: coordinator_pb2.Plan) -> Plan:
    members = {m.node: Member(m.node, m.incarnation, m.address, m.zone) for m in plan.members}
    return Plan(
        plan.term,
        plan.generation,
        plan.era,
        plan.step,
        _stages_from_proto(plan.stages),
        MappingProxyType(members),
        plan.reason,
        Origin(plan.origin_step, plan.origin, plan.origin_sha256),
        _stages_from_proto(plan.target),
        Redundancy(plan.redundancy.eager, plan.redundancy.ship_every) if plan.HasField("redundancy") else None,
        plan.leader,
    )


def commit_to_proto(commit: Commit) -> coordinator_pb2.Commit:
    order = coordinator_pb2.Commit(term=commit.term, era=commit.era, step=commit.step)
    order.scale, order.loss, order.save = commit.scale, commit.loss, commit.save
    if commit.next_plan is not None:
        order.next_plan.CopyFrom(plan_to_proto(commit.next_plan))
    return order


def commit_from_proto(commit: coordinator_pb2.Commit) -> Commit:
    return Commit(
        term=commit.term,
        era=commit.era,
        step=commit.step,
        scale=commit.scale,
        loss=commit.loss,
        next_plan=plan_from_proto(commit.next_plan) if commit.HasField("next_plan") else None,
        save=commit.save,
    )


def times_to_proto(times: TimeSplit) -> coordinator_pb2.TimeSplit:
    return coordinator_pb2.TimeSplit(
        forward=times.forward,
        backward=times.backward,
        redundant=times.redundant,
        apply=times.apply,
        bubble=times.bubble,
        idle=times.idle,
    )


def times_from_proto(times: coordinator_pb2.TimeSplit) -> TimeSplit:
    return TimeSplit(times.forward, times.backward, times.redundant, times.apply, times.bubble, times.idle)


def machine_to_proto(machine: Machine) -> coordinator_pb2.Machine:
    return coordinator_pb2.Machine(
        provider=machine.provider,
        instance_type=machine.instance_type,
        region=machine.region,
        zone=machine.zone,
        market=machine.market,
    )


def machine_from_proto(machine: coordinator_pb2.Machine) -> Machine:
    return Machine(machine.provider, machine.instance_type, machine.region, machine.zone, machine.market)


def identity_into(identity: Identity, available: coordinator_pb2.Available) -> None:
    """Writes the identity into the message; an outline that many layers have once."""
    available.parts.update(identity.parts)
    distinct = list(dict.fromkeys(identity.outlines))
    number = {outline: i for i, outline in enumerate(distinct)}
    available.outlines.extend(distinct)
    available.outline_of_layer.extend(number[outline] for outline in identity.outlines)


def identity_from_proto(available: coordinator_pb2.Available) -> Identity:
    """Raises ValueError for a layer whose outline is not there."""
    distinct = list(available.outlines)
    if any(i >= len(distinct) for i in available.outline_of_layer):
        raise ValueError("a layer has an outline that the message does not list")
    return Identity(dict(available.parts), tuple(distinct[i] for i in available.outline_of_layer))

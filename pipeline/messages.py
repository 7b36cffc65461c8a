"""Between the wire's messages and the domain's values."""

from types import MappingProxyType

from pipeline.keys import Key, Kind
from pipeline.plan import Member, Plan, StagePlan, Standby
from protos import coordinator_pb2, tensor_pb2


def key_to_proto(key: Key) -> tensor_pb2.Key:
    return tensor_pb2.Key(
        era=key.era,
        step=key.step,
        pipeline=key.pipeline,
        kind=tensor_pb2.Kind.ValueType(int(key.kind)),
        stage=key.stage,
        index=key.index,
    )


def key_from_proto(key: tensor_pb2.Key) -> Key:
    return Key(key.era, key.step, key.pipeline, Kind(key.kind), key.stage, key.index)


def plan_to_proto(plan: Plan) -> coordinator_pb2.Plan:
    stages = [
        coordinator_pb2.StagePlan(
            first_layer=stage.first_layer,
            end_layer=stage.end_layer,
            owners=stage.owners,
            standbys=[coordinator_pb2.Standby(node=b.node, hot=b.hot) for b in stage.standbys],
        )
        for stage in plan.stages
    ]
    members = [
        coordinator_pb2.Member(node=m.node, incarnation=m.incarnation, address=m.address, zone=m.zone)
        for m in plan.members.values()
    ]
    return coordinator_pb2.Plan(
        term=plan.term,
        generation=plan.generation,
        era=plan.era,
        step=plan.step,
        stages=stages,
        members=members,
        reason=plan.reason,
        origin_step=plan.origin_step,
        origin=plan.origin,
    )


def plan_from_proto(plan: coordinator_pb2.Plan) -> Plan:
    stages = tuple(
        StagePlan(s.first_layer, s.end_layer, tuple(s.owners), tuple(Standby(b.node, b.hot) for b in s.standbys))
        for s in plan.stages
    )
    members = {m.node: Member(m.node, m.incarnation, m.address, m.zone) for m in plan.members}
    order = (plan.term, plan.generation, plan.era, plan.step)
    return Plan(*order, stages, MappingProxyType(members), plan.reason, plan.origin_step, plan.origin)

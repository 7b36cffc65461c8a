"""A plan on the wire as what differs from the one before: of many stages and members a loss changes few."""

from culm.pipeline.messages import members_to_proto, plan_without_holders, stages_to_proto
from culm.pipeline.plan import Plan
from culm.protos import coordinator_pb2 as pb


class OtherPlan(Exception):
    """The change is of a plan that is not the one before: ask for the whole."""


def change_of(plan: Plan, before: Plan) -> pb.Plan | None:
    """The plan as a change of ``before``; None if it cannot be put so, or is hardly less than the whole."""
    if len(plan.stages) != len(before.stages):
        return None
    pairs = enumerate(zip(before.stages, plan.stages, strict=True))
    moved = {s: new for s, (old, new) in pairs if new is not old and new != old}
    stay = [name for name, member in before.members.items() if plan.members.get(name) == member]
    if 2 * len(moved) > len(plan.stages) or list(plan.members)[: len(stay)] != stay:
        return None
    staying = set(stay)
    order = plan_without_holders(plan)
    order.change.term, order.change.generation = before.order
    for s, stage in zip(moved, stages_to_proto(tuple(moved.values())), strict=True):
        order.change.stages[s].CopyFrom(stage)
    order.change.gone.extend(name for name in before.members if name not in staying)
    new = [member for name, member in plan.members.items() if name not in staying]
    order.change.members.extend(members_to_proto(new))
    return order


def whole(plan: pb.Plan, before: pb.Plan) -> pb.Plan:
    """The plan itself, ``before`` being the whole plan before it on the same stream. Raises OtherPlan."""
    if not plan.HasField("change"):
        return plan
    change = plan.change
    if (change.term, change.generation) != (before.term, before.generation):
        known, meant = (before.term, before.generation), (change.term, change.generation)
        raise OtherPlan(f"a change of the plan {meant} has come after the plan {known}")
    if any(s >= len(before.stages) for s in change.stages):
        raise OtherPlan(f"a change of stage {max(change.stages)}; the plan before has {len(before.stages)}")
    full = pb.Plan()
    full.CopyFrom(plan)
    full.ClearField("change")
    full.stages.extend(before.stages)
    for s, stage in change.stages.items():
        full.stages[s].CopyFrom(stage)
    gone = set(change.gone)
    full.members.extend(member for member in before.members if member.node not in gone)
    full.members.extend(change.members)
    return full

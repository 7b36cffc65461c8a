"""Plans and commits as they travel and as they are kept: the message, and a change of the plan before as one.

Of many stages and members a lost node changes few, so a stream that was sent a plan is sent what differs in the next.
"""

import base64
from collections.abc import Iterable
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import DecodeError

from culm.pipeline.bookmark import Bookmark
from culm.pipeline.commit import Commit
from culm.pipeline.early_stop import BestSoFar, EarlyStop
from culm.pipeline.origin import Origin
from culm.pipeline.pause import Pause
from culm.pipeline.plan import Buckets, Member, Plan, Redundancy, StagePlan, Stages, Standby
from culm.protos import coordinator_pb2 as pb


def stages_to_proto(stages: Stages) -> list[pb.StagePlan]:
    return [
        pb.StagePlan(
            first_layer=stage.first_layer,
            end_layer=stage.end_layer,
            owners=stage.owners,
            standbys=[pb.Standby(node=b.node, hot=b.hot) for b in stage.standbys],
            reducers=stage.buckets.reducers,
            buckets=stage.buckets.counts,
        )
        for stage in stages
    ]


def _stages_from_proto(stages: Iterable[pb.StagePlan]) -> Stages:
    return tuple(
        StagePlan(
            s.first_layer,
            s.end_layer,
            tuple(s.owners),
            tuple(Standby(b.node, b.hot) for b in s.standbys),
            Buckets(tuple(s.buckets), tuple(s.reducers)),
        )
        for s in stages
    )


def members_to_proto(members: Iterable[Member]) -> list[pb.Member]:
    return [pb.Member(node=m.node, incarnation=m.incarnation, address=m.address, zone=m.zone) for m in members]


def plan_to_proto(plan: Plan) -> pb.Plan:
    order = plan_without_holders(plan)
    order.stages.extend(stages_to_proto(plan.stages))
    order.members.extend(members_to_proto(plan.members.values()))
    return order


def plan_without_holders(plan: Plan) -> pb.Plan:
    """The plan but for its stages and members."""
    chosen = plan.redundancy
    return pb.Plan(
        redundancy=None if chosen is None else pb.Redundancy(eager=chosen.eager, ship_every=chosen.ship_every),
        term=plan.term,
        generation=plan.generation,
        era=plan.era,
        step=plan.step,
        reason=plan.reason,
        origin_step=plan.origin.step,
        origin=plan.origin.folder,
        origin_sha256=plan.origin.sha256,
        origin_best_so_far=_known_to_proto(plan.origin.best_so_far),
        target=stages_to_proto(plan.target),
        leader=plan.leader,
        early_stop=None if (stop := plan.early_stop) is None else _early_stop_to_proto(stop),
        pause=pause_to_proto(plan.pause) if plan.pause is not None else None,
    )


def pause_to_proto(pause: Pause) -> pb.Pause:
    return pb.Pause(who=pause.who, since=pause.since, why=pause.why)


def best_so_far_to_proto(known: BestSoFar) -> pb.BestSoFar:
    return pb.BestSoFar(step=known.step, number=known.number, worse_in_a_row=known.worse_in_a_row)


def _known_to_proto(known: BestSoFar | None) -> pb.BestSoFar | None:
    return best_so_far_to_proto(known) if known is not None else None


def best_so_far_from_proto(known: pb.BestSoFar) -> BestSoFar:
    return BestSoFar(known.step, known.number, known.worse_in_a_row)


def _early_stop_to_proto(stop: EarlyStop) -> pb.EarlyStop:
    return pb.EarlyStop(step=stop.step, best_so_far=best_so_far_to_proto(stop.best_so_far))


def plan_from_proto(plan: pb.Plan) -> Plan:
    members = {m.node: Member(m.node, m.incarnation, m.address, m.zone) for m in plan.members}
    return Plan(
        term=plan.term,
        generation=plan.generation,
        era=plan.era,
        step=plan.step,
        stages=_stages_from_proto(plan.stages),
        members=MappingProxyType(members),
        reason=plan.reason,
        origin=Origin(
            plan.origin_step,
            plan.origin,
            plan.origin_sha256,
            best_so_far_from_proto(plan.origin_best_so_far) if plan.HasField("origin_best_so_far") else None,
        ),
        target=_stages_from_proto(plan.target),
        redundancy=Redundancy(plan.redundancy.eager, plan.redundancy.ship_every)
        if plan.HasField("redundancy")
        else None,
        leader=plan.leader,
        early_stop=EarlyStop(plan.early_stop.step, best_so_far_from_proto(plan.early_stop.best_so_far))
        if plan.HasField("early_stop")
        else None,
        pause=Pause(plan.pause.who, plan.pause.since, plan.pause.why) if plan.HasField("pause") else None,
    )


def commit_to_proto(commit: Commit) -> pb.Commit:
    order = pb.Commit(term=commit.term, era=commit.era, step=commit.step)
    order.scale, order.loss, order.save = commit.scale, commit.loss, commit.save
    order.norm = commit.norm
    order.measured.extend(commit.measured)
    if commit.learning_rate is not None:
        order.learning_rate = commit.learning_rate
    order.evaluated.extend(commit.evaluated)
    if commit.bookmark is not None:
        order.bookmark.CopyFrom(bookmark_to_proto(commit.bookmark))
    if commit.best_so_far is not None:
        order.best_so_far.CopyFrom(best_so_far_to_proto(commit.best_so_far))
    if commit.next_plan is not None:
        order.next_plan.CopyFrom(plan_to_proto(commit.next_plan))
    return order


def commit_from_proto(commit: pb.Commit) -> Commit:
    return Commit(
        term=commit.term,
        era=commit.era,
        step=commit.step,
        scale=commit.scale,
        loss=commit.loss,
        norm=commit.norm,
        measured=tuple(commit.measured),
        learning_rate=commit.learning_rate if commit.HasField("learning_rate") else None,
        evaluated=tuple(commit.evaluated),
        bookmark=bookmark_from_proto(commit.bookmark) if commit.HasField("bookmark") else None,
        best_so_far=best_so_far_from_proto(commit.best_so_far) if commit.HasField("best_so_far") else None,
        next_plan=plan_from_proto(commit.next_plan) if commit.HasField("next_plan") else None,
        save=commit.save,
    )


def bookmark_to_proto(bookmark: Bookmark) -> pb.Bookmark:
    return pb.Bookmark(version=bookmark.version, of=bookmark.of, digest=bookmark.digest, state=bookmark.state)


def bookmark_from_proto(bookmark: pb.Bookmark) -> Bookmark:
    return Bookmark(version=bookmark.version, of=bookmark.of, digest=bookmark.digest, state=bookmark.state)


# ---- as text, for the store ------------------------------------------------------------------------------------------


def plan_to_text(plan: Plan) -> str:
    return base64.b64encode(plan_to_proto(plan).SerializeToString()).decode()


def plan_from_text(text: str) -> Plan:
    """Raises ValueError for what is no plan."""
    return plan_from_proto(_read(pb.Plan(), text))


def commit_to_text(commit: Commit) -> str:
    return base64.b64encode(commit_to_proto(commit).SerializeToString()).decode()


def commit_from_text(text: str) -> Commit:
    """Raises ValueError for what is no commit."""
    return commit_from_proto(_read(pb.Commit(), text))


M = TypeVar("M", pb.Plan, pb.Commit)


def _read(message: M, text: str) -> M:
    try:
        message.ParseFromString(base64.b64decode(text))
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return message


# ---- what differs ----------------------------------------------------------------------------------------------------
# A stream keeps its order, so both of its ends know the plan before. A change names that plan by (term, generation); a
# node that knows another one opens its stream anew, which begins with a whole plan.


class OtherPlan(Exception):
    """The change is of a plan that is not the one before: ask for the whole."""


def change_of(plan: Plan, before: Plan) -> pb.Plan | None:
    """The plan as a change of ``before``; None where a change cannot say it, or is hardly shorter than the whole."""
    if len(plan.stages) != len(before.stages):
        return None
    pairs = enumerate(zip(before.stages, plan.stages, strict=True))
    moved = {s: new for s, (old, new) in pairs if new is not old and new != old}
    stay = [name for name, member in before.members.items() if plan.members.get(name) == member]
    # ``whole`` puts new members after those that stay, so only a plan in that order can be sent as a change.
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

"""What a plan and a commit on the wire may say, whoever sends them: a coordinator, or a node that attaches (rule 18).

Pure: each function gives what is wrong in words, or nothing. ``layers`` is how many the model has; None as long as
nobody has told, when only what no run exceeds is refused.
"""

import math
from collections.abc import Iterable

from culm.pipeline.terms import TERM_LIMIT
from culm.pipeline.text import is_name
from culm.protos import coordinator_pb2 as pb

MOST_LAYERS = 1 << 16
MOST_MEMBERS = 1 << 16
MOST_TERM = TERM_LIMIT
MOST_GENERATION = (1 << 63) - 1
MOST_INCARNATION = (1 << 63) - 1
LONGEST_TEXT = 1 << 18  # characters of a reason: one that moves a thousand stages is long
LONGEST_PLACE = 1 << 12  # of an address, a zone or a URL
LONGEST_HASH = 64  # in hex


def number_problem(name: str, value: float, most: float) -> str:
    """Of a number of the outside world, which is finite and not negative."""
    if not math.isfinite(value) or not 0 <= value <= most:
        return f"{name} is {value}; it lies between 0 and {most:g}"
    return ""


def text_problem(name: str, text: str, longest: int = LONGEST_TEXT) -> str:
    return f"{name} has {len(text)} characters; at most {longest} are taken" if len(text) > longest else ""


def name_problem(name: str, text: str) -> str:
    return "" if is_name(text) else f"{name} is {text[:80]!r}, which is no name"


def order_problem(term: int, generation: int) -> str:
    if term > MOST_TERM:
        return f"term {term}; no run comes to more than {MOST_TERM}"
    return f"generation {generation}" if generation > MOST_GENERATION else ""


def plan_problem(plan: pb.Plan, layers: int | None, steps: int) -> str:
    """Of a whole plan: who holds what is among its members, and its stages are the model's layers, each once."""
    if wrong := order_problem(plan.term, plan.generation):
        return f"a plan of {wrong}"
    if plan.step > steps or plan.origin_step > plan.step:
        return f"a plan of step {plan.step}, begun from step {plan.origin_step}, in a run of {steps} steps"
    if len(plan.members) > MOST_MEMBERS:
        return f"a plan of {len(plan.members)} members; at most {MOST_MEMBERS} are taken"
    texts = (
        text_problem("a plan's reason", plan.reason)
        or text_problem("a plan's origin", plan.origin, LONGEST_PLACE)
        or text_problem("the hash of a plan's origin", plan.origin_sha256, LONGEST_HASH)
    )
    if texts:
        return texts
    for member in plan.members:
        if wrong := member_problem(member):
            return f"a plan's member: {wrong}"
    members = {member.node for member in plan.members}
    if len(members) != len(plan.members):
        return "a plan that names a member twice"
    if not plan.stages:
        return "a plan without stages"
    wrong = _stages_problem(plan.stages, members, layers)
    if not wrong and plan.target:
        wrong = _stages_problem(plan.target, members, plan.stages[-1].end_layer)
    return f"a plan of generation {plan.generation}: {wrong}" if wrong else ""


def member_problem(member: pb.Member) -> str:
    if member.incarnation > MOST_INCARNATION:
        return f"incarnation {member.incarnation}"
    return (
        name_problem("its node", member.node)
        or text_problem("its address", member.address, LONGEST_PLACE)
        or text_problem("its zone", member.zone, LONGEST_PLACE)
    )


def _stages_problem(stages: Iterable[pb.StagePlan], members: set[str], layers: int | None) -> str:
    end = 0
    for s, stage in enumerate(stages):
        if stage.first_layer != end or stage.end_layer <= stage.first_layer:
            return f"stage {s} has the layers {stage.first_layer} to {stage.end_layer} after {end}"
        end = stage.end_layer
        holders = [*stage.owners, *(standby.node for standby in stage.standbys)]
        if len(stage.owners) != 1:
            return f"stage {s} has {len(stage.owners)} owners for one pipeline"
        if len(set(holders)) != len(holders):
            return f"stage {s} names a holder twice"
        if strangers := [node for node in holders if node not in members]:
            return f"stage {s} is with {strangers[0][:64]!r}, who is no member"
    if layers is None:
        return f"{end} layers; at most {MOST_LAYERS} are taken" if end > MOST_LAYERS else ""
    return f"{end} layers; the model has {layers}" if end != layers else ""


def commit_problem(commit: pb.Commit, layers: int | None, steps: int) -> str:
    """Of a commit. Its loss may be no number: that is the job's fault, and told as such."""
    if wrong := order_problem(commit.term, 0):
        return f"a commit of {wrong}"
    if commit.step >= steps:
        return f"a commit of step {commit.step}; the last is {steps - 1}"
    if not math.isfinite(commit.scale) or commit.scale < 0.0:
        return f"a commit of step {commit.step} with the scale {commit.scale}"
    return plan_problem(commit.next_plan, layers, steps) if commit.HasField("next_plan") else ""

"""What a plan and a commit on the wire may say, whoever sends them: a coordinator, or a node that attaches (rule 18).

Pure: each function gives what is wrong, in words, or an empty text. ``layers`` is how many the model has. As long as
nobody has told it is None: then only what no run exceeds is refused.
"""

import math
from collections.abc import Iterable

from culm.pipeline.bookmark import MOST_BYTES
from culm.pipeline.tally import TallyForm
from culm.pipeline.terms import TERM_LIMIT
from culm.pipeline.text import is_name
from culm.protos import coordinator_pb2 as pb

# Far above any run, and low enough that whatever a message within them makes a process build stays small.
MOST_LAYERS = 1 << 16
MOST_MEMBERS = 1 << 16
MOST_TERM = TERM_LIMIT
MOST_GENERATION = (1 << 63) - 1
MOST_INCARNATION = (1 << 63) - 1
LONGEST_TEXT = 1 << 18  # characters of a reason: one that moves a thousand stages is long
LONGEST_PLACE = 1 << 12  # of an address, a zone or a URL
LONGEST_HASH = 64  # in hex
LATEST = 1e11  # unix seconds: the year 5138


def number_problem(name: str, value: float, most: float) -> str:
    """Of a number from outside, which has to be finite and not negative."""
    if not math.isfinite(value) or not 0 <= value <= most:
        return f"{name} is {value}; it has to be between 0 and {most:g}"
    return ""


def text_problem(name: str, text: str, longest: int = LONGEST_TEXT) -> str:
    return f"{name} has {len(text)} characters; {longest} at most are accepted" if len(text) > longest else ""


def name_problem(name: str, text: str) -> str:
    return "" if is_name(text) else f"{name} is {text[:80]!r}, which is not a valid name"


def order_problem(term: int, generation: int) -> str:
    if term > MOST_TERM:
        return f"its term is {term}; {MOST_TERM} is the highest"
    return f"its generation is {generation}; {MOST_GENERATION} is the highest" if generation > MOST_GENERATION else ""


def plan_problem(plan: pb.Plan, layers: int | None, steps: int, pipelines: int) -> str:
    """Of a whole plan: who holds what is among its members, and its stages are the model's layers, each once."""
    if wrong := order_problem(plan.term, plan.generation):
        return f"the plan is refused: {wrong}"
    if plan.step > steps or plan.origin_step > plan.step:
        return f"the plan is of step {plan.step}, and begins from step {plan.origin_step}; the run has {steps} steps"
    stop = plan.early_stop
    if plan.HasField("early_stop") and stop.step >= plan.step:
        return f"the plan is of step {plan.step}, and says that the run has ended early at step {stop.step}"
    if wrong := best_problem(plan.origin_best_so_far, plan.origin_step) or best_problem(stop.best_so_far, stop.step):
        return f"the plan is refused: {wrong}"
    if len(plan.members) > MOST_MEMBERS:
        return f"the plan has {len(plan.members)} members; {MOST_MEMBERS} at most are accepted"
    texts = (
        text_problem("the plan's reason", plan.reason)
        or text_problem("the plan's origin", plan.origin, LONGEST_PLACE)
        or text_problem("the hash of the plan's origin", plan.origin_sha256, LONGEST_HASH)
        or text_problem("who paused the run", plan.pause.who, LONGEST_PLACE)
        or text_problem("why the run is paused", plan.pause.why, LONGEST_PLACE)
        or number_problem("when the run was paused", plan.pause.since, LATEST)
    )
    if texts:
        return texts
    for member in plan.members:
        if wrong := member_problem(member):
            return f"a member of the plan is refused: {wrong}"
    members = {member.node for member in plan.members}
    if len(members) != len(plan.members):
        return "the plan names a member twice"
    if not plan.stages:
        return "the plan has no stages"
    wrong = _stages_problem(plan.stages, members, layers, pipelines)
    if not wrong and plan.target:
        wrong = _stages_problem(plan.target, members, plan.stages[-1].end_layer, pipelines)
    return f"the plan of generation {plan.generation} is refused: {wrong}" if wrong else ""


def best_problem(best: pb.BestSoFar, version: int) -> str:
    """Of the best evaluation before a version: how good that one is itself is known only later."""
    if best.step >= max(version, 1) or best.worse_in_a_row > version:
        return (
            f"before version {version} the best evaluation is said to be of step {best.step}, with "
            f"{best.worse_in_a_row} since"
        )
    return "the best evaluation so far is said to be no number" if math.isnan(best.number) else ""


def member_problem(member: pb.Member) -> str:
    if member.incarnation > MOST_INCARNATION:
        return f"its incarnation is {member.incarnation}; {MOST_INCARNATION} is the highest"
    return (
        name_problem("its node", member.node)
        or text_problem("its address", member.address, LONGEST_PLACE)
        or text_problem("its zone", member.zone, LONGEST_PLACE)
    )


def _stages_problem(stages: Iterable[pb.StagePlan], members: set[str], layers: int | None, pipelines: int) -> str:
    end = 0
    for s, stage in enumerate(stages):
        if stage.first_layer != end or stage.end_layer <= stage.first_layer:
            return f"stage {s} has layers {stage.first_layer} up to {stage.end_layer}; it has to begin at {end}"
        end = stage.end_layer
        holders = [*dict.fromkeys(stage.owners), *(standby.node for standby in stage.standbys)]
        if len(stage.owners) != pipelines:
            return f"stage {s} has {len(stage.owners)} owners; each of the {pipelines} pipelines needs one"
        layers_of_stage = stage.end_layer - stage.first_layer
        if len(stage.buckets) not in (0, layers_of_stage) or not all(0 < each <= pipelines for each in stage.buckets):
            return f"stage {s} has {list(stage.buckets)[:8]} buckets; each layer has one to {pipelines}"
        reducers = 0 if len(set(stage.owners)) == 1 else sum(stage.buckets) or layers_of_stage
        if len(stage.reducers) != reducers or not set(stage.reducers) <= set(stage.owners):
            return f"stage {s} has {len(stage.reducers)} reducers; it needs {reducers}, each of them an owner"
        if len(set(holders)) != len(holders):
            return f"stage {s} names a holder twice"
        if strangers := [node for node in holders if node not in members]:
            return f"stage {s} names the holder {strangers[0][:64]!r}, which is not a member"
    if layers is None:
        return f"it has {end} layers; {MOST_LAYERS} at most are accepted" if end > MOST_LAYERS else ""
    return f"it has {end} layers; the model has {layers}" if end != layers else ""


def commit_problem(
    commit: pb.Commit, layers: int | None, steps: int, pipelines: int, form: TallyForm | None = None
) -> str:
    """Of a commit. Its loss may be NaN: that is a fact of the job. ``form``: which numbers the job tells."""
    if wrong := order_problem(commit.term, 0):
        return f"the commit is refused: {wrong}"
    if commit.step >= steps:
        return f"the commit is of step {commit.step}; the last step is {steps - 1}"
    if not math.isfinite(commit.scale) or commit.scale < 0.0:
        return f"the commit of step {commit.step} has the scale {commit.scale}; it has to be finite, and not negative"
    if commit.HasField("bookmark") and (wrong := bookmark_problem(commit.bookmark, commit.step + 1)):
        return f"the commit of step {commit.step} is refused: {wrong}"
    if wrong := best_problem(commit.best_so_far, commit.step + 1):
        return f"the commit of step {commit.step} is refused: {wrong}"
    if form is not None and (wrong := _told_problem(commit, form)):
        return f"the commit of step {commit.step} tells {wrong}"
    return plan_problem(commit.next_plan, layers, steps, pipelines) if commit.HasField("next_plan") else ""


def bookmark_problem(bookmark: pb.Bookmark, newest: int) -> str:
    """``newest``: the step that it may be of at most."""
    if not 0 < bookmark.version <= newest:
        return f"it has a bookmark of step {bookmark.version}; steps 1 to {newest} can have one"
    if len(bookmark.state) > MOST_BYTES:
        return f"its bookmark has {len(bookmark.state)} bytes; up to {MOST_BYTES} are accepted"
    return text_problem("a bookmark's hash", max(bookmark.of, bookmark.digest, key=len), LONGEST_HASH)


def _told_problem(commit: pb.Commit, form: TallyForm) -> str:
    for told, known, what in (
        (len(commit.evaluated), form.means, "an evaluation"),
        (len(commit.measured), len(form.measured), "training"),
    ):
        if told not in (0, known):
            return f"{told} numbers of {what}, not {known}"
    return ""

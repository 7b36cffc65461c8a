"""What may reach the coordinator of a node's reports (rule 18). What operators ask: ``request_bounds``."""

# Pure: each function gives what is wrong in words, or nothing, from the state and the message alone. The stream of
# whoever sent a wrong message ends with those words, which are logged behind the node's name; nothing else changes.
#
# Three kinds of messages, and what becomes of them:
#
#     what no node of this run says                     refused here, before memory is set aside or anything is decided
#     what is late, or of an era or a plan before       taken, and changes nothing: ``advance`` tells by itself
#     losses and gradients that are not finite          taken: a fact of the job, which the commit decides
#
# A bound is what the run knows (layers, steps, microbatches), or else a number that no run comes near. It is never what
# is usual: to refuse an honest node is to lose it. Every field that becomes an index, a count or a size has one of the
# two.
#
# History, of one message each: ``CaughtUp`` up to layer 2^32 - 1 took 17 GB; a last commit of step 2^60 hung the
# coordinator; a squared norm of -1 ended it.

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from math import isfinite
from typing import Any

from culm.coordinator.state import State
from culm.pipeline import tally
from culm.pipeline.plan_bounds import (
    LATEST,
    LONGEST_PLACE,
    MOST_GENERATION,
    MOST_INCARNATION,
    MOST_LAYERS,
    MOST_MEMBERS,
    best_problem,
    bookmark_problem,
    commit_problem,
    name_problem,
    number_problem,
    plan_problem,
    text_problem,
)
from culm.pipeline.terms import ERAS_BITS, is_believable
from culm.pipeline.text import is_name
from culm.protos import coordinator_pb2 as pb

MOST_PARAMETERS = 1 << 48  # of a layer: more than any machine holds
MOST_SECONDS = 1e9  # 30 years: sums of them stay finite
MOST_BYTES = 1 << 60  # of a file, of memory, or sent to a peer: more than a link carries in a run's life
MOST_COUNT = 1 << 53  # of anything: what a float still counts one by one
MOST_GENERATIONS_MISSED = 1 << 32  # plans that a leader has not heard of: a new one each millisecond for 50 days
MOST_FILES = 8  # of a layer in a checkpoint; today there are two
MOST_PARTS = 16  # of a node's identity; today there are nine, and a later version may tell more
LONGEST_WORD = 256  # characters of a name, a hash or an instruction: they are kept for every node
MOST_LINES = 200  # of a log in one heartbeat
LONGEST_LINE = 4_000  # characters
LONGEST_OUTLINE = 1 << 20  # characters, of a layer with some ten thousand tensors
HEX = "0123456789abcdef"


def join_problem(join: pb.Join) -> str:
    """Of the first message of a node. What its term means for this coordinator is decided elsewhere."""
    # All of these are shown on terminals and dashboards: an address with an escape sequence is no address.
    machine = join.machine
    words = (join.zone, join.run, machine.provider, machine.instance_type, machine.region, machine.zone, machine.market)
    if join.incarnation > MOST_INCARNATION:
        return f"its incarnation is {join.incarnation}; {MOST_INCARNATION} is the highest"
    if hidden := next((word for word in (join.address, *words) if not word.isprintable()), ""):
        return f"{hidden[:80]!r} holds characters that cannot be printed"
    return (
        name_problem("the node", join.node)
        or (name_problem("the zone", join.zone) if join.zone else "")
        or text_problem("the address", join.address, LONGEST_WORD)
        or next(filter(None, (text_problem("a word of the machine", word, LONGEST_WORD) for word in words)), "")
    )


def problem(state: State, request: pb.AttendRequest) -> str:
    """Of a report on a stream that has begun; what this version does not know is no problem."""
    body = request.WhichOneof("body")
    if body == "join":
        return "it joins a second time on one stream"
    # A node of a newer version may say more than this coordinator knows: that is no reason to end its stream.
    check = _CHECKS.get(body or "")
    return check(state, getattr(request, body)) if check is not None and body is not None else ""


def _layers(state: State) -> int:
    """How many layers there may be: as many as the first node told, or as no model exceeds."""
    return len(state.layer_costs) or MOST_LAYERS


def _available(state: State, said: pb.Available) -> str:
    # Another fingerprint means other code, whose model may have any number of layers: it is refused by name later, in
    # words that say what to do (``membership.refusal``).
    known, count, steps = state.layer_costs, len(said.layer_parameters), state.settings.end
    pipelines = state.settings.pipelines
    if not 0 < count <= MOST_LAYERS:
        return f"its model has {count} layers; 1 to {MOST_LAYERS} are accepted"
    if known and said.fingerprint == state.fingerprint and count != len(known):
        return f"its model has {count} layers, but the same code has {len(known)} on other nodes"
    if max(said.layer_parameters) > MOST_PARAMETERS:
        return f"a layer has {max(said.layer_parameters)} parameters; {MOST_PARAMETERS} at most are accepted"
    if len(said.layer_seconds) not in (0, count):
        return f"it tells how long {len(said.layer_seconds)} layers take, of {count}"
    if odd := [seconds for seconds in said.layer_seconds if not 0.0 < seconds <= MOST_SECONDS]:
        return f"a layer takes {odd[0]} s; more than 0 and {MOST_SECONDS:g} at most are accepted"
    if len(said.layer_state_bytes) != len(said.layer_gradient_bytes) or len(said.layer_state_bytes) not in (0, count):
        return f"it tells the bytes of {len(said.layer_state_bytes)} layers, of {count}"
    if len(said.layer_boundary_bytes) not in (0, len(said.layer_state_bytes)):
        return f"it tells the bytes at {len(said.layer_boundary_bytes)} boundaries, of {len(said.layer_state_bytes)}"
    of_layers = (*said.layer_state_bytes, *said.layer_gradient_bytes, *said.layer_boundary_bytes)
    most = max([said.memory_bytes, said.spill_above, *of_layers])
    if most > MOST_BYTES:
        return f"it tells of {most} bytes; {MOST_BYTES} at most are accepted"
    if said.version > steps or _is_ahead(state, said):
        return f"it is at version {said.version}, but {state.committed} of {steps} steps are committed"
    if len(said.layers) > count or len(set(said.layers)) != len(said.layers) or max(said.layers, default=0) >= count:
        return f"it names {len(said.layers)} layers that it holds, of {count}: one is named twice or does not exist"
    if said.HasField("last_commit"):
        # To apply step t makes the version t + 1.
        commit = said.last_commit
        if commit.step >= max(said.version, 1):
            return f"it has applied step {commit.step}, but is at version {said.version}"
        if wrong := commit_problem(commit, count, steps, pipelines, state.settings.tally):
            return wrong
    if said.HasField("plan"):
        wrong = plan_problem(said.plan, count, steps, pipelines) or _its_plan(state, said.plan)
        if wrong:
            return wrong
    return (
        text_problem("the fingerprint", said.fingerprint, LONGEST_WORD)
        or text_problem("why it could not measure", said.unmeasured)
        or _identity(said, count)
    )


def _its_plan(state: State, plan: pb.Plan) -> str:
    """A plan that a leader may adopt: its numbers go on from there, and they are not to come to their end."""
    if not is_believable(plan.term, state.term):
        return f"its plan is of term {plan.term}, and this leader's is {state.term}"
    if plan.generation > state.generation + MOST_GENERATIONS_MISSED:
        return f"its plan is of generation {plan.generation}, and this leader knows {state.generation}"
    if plan.era >= (plan.term + 1) << ERAS_BITS:
        return f"its plan is of era {plan.era}, which no leader of term {plan.term} has begun"
    return ""


def _identity(said: pb.Available, layers: int) -> str:
    if len(said.parts) > MOST_PARTS or len(said.outlines) > layers:
        return f"its identity has {len(said.parts)} parts, and {len(said.outlines)} outlines for {layers} layers"
    # Each distinct outline comes once, and each layer names its own by index: a model of a thousand equal layers stays
    # one outline.
    if said.outline_of_layer and len(said.outline_of_layer) != layers:
        return f"it tells the outlines of {len(said.outline_of_layer)} layers, of {layers}"
    if max(said.outline_of_layer, default=-1) >= len(said.outlines):
        return "the outline that one of its layers names is missing"
    texts = [*said.parts.keys(), *said.parts.values()]
    problems = [text_problem("a part of its identity", text, LONGEST_PLACE) for text in texts]
    problems += [text_problem("an outline", text, LONGEST_OUTLINE) for text in said.outlines]
    return next(filter(None, problems), "")


def _built(state: State, said: pb.Built) -> str:
    if len(said.initial) > _layers(state) or max(said.initial, default=0) >= _layers(state):
        return f"it has built {len(said.initial)} layers of {_layers(state)}, or one that does not exist"
    wrong = [digest for digest in said.initial.values() if len(digest) != 16 or not set(digest) <= set(HEX)]
    return f"the hash of a layer that it built is {wrong[0][:80]!r}" if wrong else ""


def _is_ahead(state: State, said: pb.Available) -> bool:
    """Whether the version is above what this leader has committed, though every commit of the era was its own."""
    # While a takeover lasts the store may be behind the nodes: then a higher version is news, and no lie (rule 8).
    plan = state.plan
    own = plan is not None and plan.term == state.term and state.took_over_at is None
    if said.HasField("plan") and said.plan.leader != state.leader:
        return False  # another leader's plan, and maybe its commits: what follows is decided (rule 15)
    return own and said.era == state.era and said.version > state.committed


def _heartbeat(state: State, beat: pb.Heartbeat) -> str:
    times = beat.times
    numbers = {
        "running_seconds": beat.running_seconds,
        "loading_seconds": beat.loading_seconds,
        "median_seconds": beat.median_seconds,
        "deviation_seconds": beat.deviation_seconds,
        "slowness": beat.slowness,
        "forward": times.forward,
        "backward": times.backward,
        "redundant": times.redundant,
        "apply": times.apply,
        "bubble": times.bubble,
        "idle": times.idle,
    }
    if beat.version > state.settings.end:
        return f"it is at version {beat.version}, but the run has {state.settings.end} steps"
    if len(beat.sent_bytes) > MOST_MEMBERS or not all(map(is_name, beat.sent_bytes)):
        return f"it has sent bytes to {len(beat.sent_bytes)} peers, or to one whose name is not valid"
    return (
        _numbers(numbers.items(), MOST_SECONDS)
        or _numbers((("bytes_per_second", beat.bytes_per_second), ("finished", beat.finished)), MOST_COUNT)
        or _numbers((("sent_bytes", count) for count in beat.sent_bytes.values()), MOST_BYTES)
        or text_problem("the instruction", beat.instruction, LONGEST_WORD)
        or (_resources(beat.resources) if beat.HasField("resources") else "")
        or (_log_lines(beat.log_lines) if beat.log_lines else "")
    )


def _resources(seen: pb.Resources) -> str:
    seconds = (("seconds", seen.seconds), ("cpu_seconds", seen.cpu_seconds), ("processors", seen.processors))
    amounts = (
        ("resident_bytes", seen.resident_bytes),
        ("memory_bytes", seen.memory_bytes),
        ("accelerator_used_bytes", seen.accelerator_used_bytes),
        ("accelerator_bytes", seen.accelerator_bytes),
    )
    work = seen.tensor_workers
    counts = (("workers", work.workers), ("waiting", work.waiting), ("done", work.done), ("repeated", work.repeated))
    sums = (("seconds of workers", work.seconds), ("gigabyte_seconds", work.gigabyte_seconds))
    more = (("waited_seconds", work.waited_seconds), ("share", work.share))
    return (
        _numbers(seconds, MOST_SECONDS)
        or _numbers(amounts, MOST_BYTES)
        or _numbers((*counts, *sums, *more), MOST_COUNT)
        or number_problem("accelerator_busy", seen.accelerator_busy, 1.0)
    )


def _log_lines(lines: Collection[pb.LogLine]) -> str:
    # Bounds are wider than what a node sends today (``log_tail``): what is kept is cut anyway.
    if len(lines) > MOST_LINES:
        return f"it tells {len(lines)} lines of its log at once; {MOST_LINES} are accepted"
    for line in lines:
        if len(line.text) > LONGEST_LINE or len(line.logger) > LONGEST_WORD:
            return f"a line of its log has {len(line.text)} characters; {LONGEST_LINE} are accepted"
        if line.number > MOST_COUNT or not 0.0 <= line.time <= LATEST:  # NaN is in no range
            return f"line {line.number} of its log is of the time {line.time}, which cannot be"
    return ""


def _numbers(named: Iterable[tuple[str, float]], most: float) -> str:
    return next(filter(None, (number_problem(name, value, most) for name, value in named)), "")


def _ready(state: State, said: pb.Ready) -> str:
    # The stage is not held against the plan: under the next one the same layers may be of another stage.
    layers, count = _layers(state), len(said.squared_norms)
    if said.step >= state.settings.end or said.stage >= layers:
        return (
            f"it is ready with stage {said.stage} of step {said.step}, but the run has {layers} layers "
            f"and {state.settings.end} steps"
        )
    if not count or said.first_layer + count > layers:
        return f"it is ready with {count} layers from layer {said.first_layer} on, of {layers}"
    # A NaN is not below zero: it passes, as the job's own fault.
    if any(norm < 0.0 for norm in said.squared_norms):
        return f"a squared norm is {min(said.squared_norms)}, which is negative"
    settings = state.settings
    if len(said.states) not in (0, count):
        return f"it tells the state of {len(said.states)} layers, and is ready with {count}"
    for audited in (*said.audited, *said.taken):
        where = audited.pipeline < settings.pipelines and audited.microbatch < settings.microbatches
        if not where or audited.stage >= layers:
            return f"it tells of microbatch {audited.microbatch} of pipeline {audited.pipeline}, stage {audited.stage}"
    told = settings.told_in(said.step)
    if len(said.tallies) not in (0, told):
        return f"it tells {len(said.tallies)} tallies where step {said.step} has {told}"
    trained, evaluated = tally.parted(said.tallies, settings.evaluated_in(said.step), settings.pipelines)
    form = settings.tally
    of_training = (trained[i :: form.trained] for i in form.counts)
    counts = [*evaluated[1::2], *chain.from_iterable(of_training)]
    if any(not isfinite(count) or count < 0.0 for count in counts):
        return "a count is negative, or not finite"
    # An heir may run each microbatch's forward, backward and, with zb-h1, the backward's second half again.
    of_evaluation = settings.pipelines * settings.evaluations.in_step(said.step, settings.steps)
    most = 3 * settings.microbatches_of_step + of_evaluation
    return f"it has redone {said.redone} instructions of a stage with at most {most}" if said.redone > most else ""


def _caught_up(state: State, said: pb.CaughtUp) -> str:
    layers = _layers(state)
    if said.first_layer < said.end_layer <= layers:
        return ""
    return f"it has caught up with the layers from {said.first_layer} up to {said.end_layer}, of {layers}"


def _read(state: State, said: pb.Bookmark) -> str:
    return bookmark_problem(said, state.settings.steps)


def _resumed(state: State, said: pb.Resumed) -> str:
    if said.stage >= _layers(state) or said.generation > MOST_GENERATION:
        return f"it has resumed stage {said.stage} in generation {said.generation}, which cannot exist"
    return ""


def _peer_lost(state: State, said: pb.PeerLost) -> str:
    if said.incarnation > MOST_INCARNATION:
        return f"its lost peer's incarnation is {said.incarnation}; {MOST_INCARNATION} is the highest"
    return name_problem("the peer", said.node) or text_problem("why", said.why)


def _draining(state: State, said: pb.Draining) -> str:
    return number_problem("seconds_left", said.seconds_left, MOST_SECONDS) or text_problem("why", said.why)


def _saved(state: State, said: pb.Saved) -> str:
    layers = _layers(state)
    if said.step > state.settings.steps:
        return _beyond("a checkpoint", said.step, state)
    if wrong := best_problem(said.best_so_far, said.step):
        return f"of the checkpoint of step {said.step}: {wrong}"
    if len(said.files) > MOST_FILES * layers:
        return f"it has written {len(said.files)} files for {layers} layers; {MOST_FILES} a layer are accepted"
    for file in said.files:
        if file.layer >= layers or file.size > MOST_BYTES:
            return f"a file of layer {file.layer} has {file.size} bytes; there are {layers} layers"
        if len(file.sha256) != 64 or not set(file.sha256) <= set(HEX):
            return "a file has no valid sha256"
        if not is_name(file.name):
            return f"a file is named {file.name[:80]!r}, which is not a valid name"  # it becomes part of a path
    return ""


def _checkpoint(state: State, said: pb.CheckpointBad | pb.Unread) -> str:
    if said.step > state.settings.steps:
        return _beyond("a checkpoint", said.step, state)
    if isinstance(said, pb.Unread) and said.damaged_layer >= max(_layers(state), 1):
        return f"files of layer {said.damaged_layer} are damaged; there are {_layers(state)} layers"
    return (
        text_problem("the folder", said.folder, LONGEST_PLACE)
        or text_problem("the manifest's hash", said.sha256, LONGEST_WORD)
        or text_problem("why", said.why)
    )


def _checkpoint_fault(state: State, said: pb.CheckpointFault) -> str:
    if said.step > state.settings.steps:
        return _beyond("a checkpoint", said.step, state)
    return text_problem("why", said.why)


def _beyond(what: str, step: int, state: State) -> str:
    return f"{what} is of step {step}, but the run has {state.settings.steps} steps"


def _failed(state: State, said: pb.Failed) -> str:
    layers, work = _layers(state), said.work
    if work.first_layer >= layers or work.end_layer > layers:
        return f"work that failed is of the layers from {work.first_layer} up to {work.end_layer}, of {layers}"
    if work.step > state.settings.end:
        return _beyond("work that failed", work.step, state)
    return text_problem("why", said.why) or text_problem("what", work.what, LONGEST_WORD)


def _why(state: State, said: pb.Leave | pb.Warned) -> str:
    return text_problem("why", said.why)


_CHECKS: Mapping[str, Callable[[State, Any], str]] = {
    "available": _available,
    "built": _built,
    "heartbeat": _heartbeat,
    "ready": _ready,
    "caught_up": _caught_up,
    "read": _read,
    "resumed": _resumed,
    "peer_lost": _peer_lost,
    "draining": _draining,
    "saved": _saved,
    "checkpoint_bad": _checkpoint,
    "unread": _checkpoint,
    "checkpoint_fault": _checkpoint_fault,
    "leave": _why,
    "failed": _failed,
    "warned": _why,
}

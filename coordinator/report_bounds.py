"""What may reach the coordinator: a node's reports, and what operators ask (rule 18).

Pure: each function gives what is wrong in words, or nothing, from the state and the message alone. What is late, or of
an era or a plan before, is not wrong: ``advance`` knows what to do with it. Wrong is what no node of this run says.
Losses and norms may be no numbers: that is a fact of the job, and decided at the commit.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from culm.coordinator.state import State
from culm.pipeline.plan_bounds import (
    LONGEST_PLACE,
    MOST_GENERATION,
    MOST_INCARNATION,
    MOST_LAYERS,
    MOST_MEMBERS,
    commit_problem,
    name_problem,
    number_problem,
    plan_problem,
    text_problem,
)
from culm.pipeline.text import is_name
from culm.protos import coordinator_pb2 as pb

MOST_PARAMETERS = 1 << 48  # of a layer
MOST_SECONDS = 1e9
MOST_BYTES = 1 << 60
MOST_COUNT = 1 << 53  # of anything: what a float still counts one by one
MOST_FILES = 8  # of a layer in a checkpoint
MOST_PARTS = 16  # of a node's identity
LONGEST_WORD = 256
LONGEST_OUTLINE = 1 << 20  # of a layer with some ten thousand tensors
HEX = "0123456789abcdef"


def join_problem(join: pb.Join) -> str:
    """Of the first message of a node. What its term means for this coordinator is decided elsewhere."""
    machine = join.machine
    words = (join.zone, join.run, machine.provider, machine.instance_type, machine.region, machine.zone, machine.market)
    if join.incarnation > MOST_INCARNATION:
        return f"incarnation {join.incarnation}"
    if hidden := next((word for word in (join.address, *words) if not word.isprintable()), ""):
        return f"{hidden[:80]!r} holds what cannot be printed"
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
        return "a second join: a stream begins with it"
    check = _CHECKS.get(body or "")
    return check(state, getattr(request, body)) if check is not None and body is not None else ""


def _layers(state: State) -> int:
    """How many layers there may be: as many as the first node told, or as no model exceeds."""
    return len(state.layer_costs) or MOST_LAYERS


def _available(state: State, said: pb.Available) -> str:
    known, count, steps = state.layer_costs, len(said.layer_parameters), state.settings.steps
    if not 0 < count <= MOST_LAYERS:
        return f"a model of {count} layers; at most {MOST_LAYERS} are taken"
    if known and said.fingerprint == state.fingerprint and count != len(known):
        return f"a model of {count} layers, where the same code has {len(known)}"
    if max(said.layer_parameters) > MOST_PARAMETERS:
        return f"a layer of {max(said.layer_parameters)} parameters"
    if said.version > steps or _is_ahead(state, said):
        return f"version {said.version}, when {state.committed} steps are committed of {steps}"
    if len(said.layers) > count or len(set(said.layers)) != len(said.layers) or max(said.layers, default=0) >= count:
        return f"{len(said.layers)} layers held of {count}, some of them twice or beyond the last"
    if said.HasField("last_commit"):
        commit = said.last_commit
        if commit.step >= max(said.version, 1):
            return f"step {commit.step} applied, at version {said.version}"
        if wrong := commit_problem(commit, count, steps):
            return wrong
    if said.HasField("plan") and (wrong := plan_problem(said.plan, count, steps)):
        return wrong
    return text_problem("the fingerprint", said.fingerprint, LONGEST_WORD) or _identity(said, count)


def _identity(said: pb.Available, layers: int) -> str:
    if len(said.parts) > MOST_PARTS or len(said.outlines) > layers:
        return f"{len(said.parts)} parts of its identity, {len(said.outlines)} outlines of {layers} layers"
    if said.outline_of_layer and len(said.outline_of_layer) != layers:
        return f"outlines of {len(said.outline_of_layer)} layers of {layers}"
    if max(said.outline_of_layer, default=-1) >= len(said.outlines):
        return "a layer whose outline is missing"
    texts = [*said.parts.keys(), *said.parts.values()]
    problems = [text_problem("a part of its identity", text, LONGEST_PLACE) for text in texts]
    problems += [text_problem("an outline", text, LONGEST_OUTLINE) for text in said.outlines]
    return next(filter(None, problems), "")


def _built(state: State, said: pb.Built) -> str:
    if len(said.initial) > _layers(state) or max(said.initial, default=0) >= _layers(state):
        return f"{len(said.initial)} layers built of {_layers(state)}"
    wrong = [digest for digest in said.initial.values() if len(digest) != 16 or not set(digest) <= set(HEX)]
    return f"a hash {wrong[0][:80]!r} of a layer" if wrong else ""


def _is_ahead(state: State, said: pb.Available) -> bool:
    """Whether the version is above what this leader has committed, though every commit of the era was its own."""
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
    if beat.version > state.settings.steps:
        return f"version {beat.version} of {state.settings.steps}"
    if len(beat.sent_bytes) > MOST_MEMBERS or not all(map(is_name, beat.sent_bytes)):
        return f"bytes sent to {len(beat.sent_bytes)} peers, or to one without a name"
    return (
        _numbers(numbers.items(), MOST_SECONDS)
        or _numbers((("bytes_per_second", beat.bytes_per_second), ("finished", beat.finished)), MOST_COUNT)
        or _numbers((("sent_bytes", count) for count in beat.sent_bytes.values()), MOST_BYTES)
        or text_problem("the instruction", beat.instruction, LONGEST_WORD)
    )


def _numbers(named: Iterable[tuple[str, float]], most: float) -> str:
    return next(filter(None, (number_problem(name, value, most) for name, value in named)), "")


def _ready(state: State, said: pb.Ready) -> str:
    layers, count = _layers(state), len(said.squared_norms)
    if said.step >= state.settings.steps or said.stage >= layers:
        return f"ready for stage {said.stage} in step {said.step}, of {layers} layers and {state.settings.steps} steps"
    if not count or said.first_layer + count > layers:
        return f"ready for {count} layers from {said.first_layer} on, of {layers}"
    if any(norm < 0.0 for norm in said.squared_norms):
        return f"a squared norm of {min(said.squared_norms)}"
    if len(said.losses) not in (0, state.settings.microbatches):
        return f"{len(said.losses)} losses of {state.settings.microbatches} microbatches"
    most = 3 * state.settings.microbatches
    return f"{said.redone} instructions redone of {most}" if said.redone > most else ""


def _caught_up(state: State, said: pb.CaughtUp) -> str:
    layers = _layers(state)
    if said.first_layer < said.end_layer <= layers:
        return ""
    return f"caught up with the layers {said.first_layer} to {said.end_layer}, of {layers}"


def _resumed(state: State, said: pb.Resumed) -> str:
    if said.stage >= _layers(state) or said.generation > MOST_GENERATION:
        return f"stage {said.stage} resumed in generation {said.generation}"
    return ""


def _peer_lost(state: State, said: pb.PeerLost) -> str:
    if said.incarnation > MOST_INCARNATION:
        return f"the end of incarnation {said.incarnation}"
    return name_problem("the peer", said.node) or text_problem("why", said.why)


def _draining(state: State, said: pb.Draining) -> str:
    return number_problem("seconds_left", said.seconds_left, MOST_SECONDS) or text_problem("why", said.why)


def _saved(state: State, said: pb.Saved) -> str:
    layers = _layers(state)
    if said.step > state.settings.steps:
        return f"a checkpoint of step {said.step} of {state.settings.steps}"
    if len(said.files) > MOST_FILES * layers:
        return f"{len(said.files)} files for {layers} layers"
    for file in said.files:
        if file.layer >= layers or file.size > MOST_BYTES:
            return f"a file of layer {file.layer} with {file.size} bytes"
        if len(file.sha256) != 64 or not set(file.sha256) <= set(HEX):
            return "a file without a sha256"
        if not is_name(file.name):
            return f"a file named {file.name[:80]!r}"
    return ""


def _checkpoint(state: State, said: pb.CheckpointBad | pb.Unread) -> str:
    if said.step > state.settings.steps:
        return f"a checkpoint of step {said.step} of {state.settings.steps}"
    return (
        text_problem("the folder", said.folder, LONGEST_PLACE)
        or text_problem("the manifest's hash", said.sha256, LONGEST_WORD)
        or text_problem("why", said.why)
    )


def _checkpoint_fault(state: State, said: pb.CheckpointFault) -> str:
    if said.step > state.settings.steps:
        return f"a checkpoint of step {said.step} of {state.settings.steps}"
    return text_problem("why", said.why)


def _failed(state: State, said: pb.Failed) -> str:
    layers, work = _layers(state), said.work
    if work.first_layer >= layers or work.end_layer > layers:
        return f"work of the layers {work.first_layer} to {work.end_layer} failed, of {layers}"
    if work.step > state.settings.steps:
        return f"work of step {work.step} of {state.settings.steps} failed"
    return text_problem("why", said.why) or text_problem("what", work.what, LONGEST_WORD)


def _why(state: State, said: pb.Leave | pb.Warned) -> str:
    return text_problem("why", said.why)


_CHECKS: Mapping[str, Callable[[State, Any], str]] = {
    "available": _available,
    "built": _built,
    "heartbeat": _heartbeat,
    "ready": _ready,
    "caught_up": _caught_up,
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


def drain_problem(request: pb.DrainRequest) -> str:
    """Of what an operator asks."""
    return name_problem("the node", request.node) or text_problem("why", request.why, LONGEST_PLACE)


def kill_problem(request: pb.KillRequest) -> str:
    """Of what an operator asks. ``at``: STEP:INSTRUCTION, or nothing."""
    step, _, instruction = request.at.partition(":")
    wrong = len(request.at) > LONGEST_WORD or not (step.isascii() and step.isdecimal() and instruction)
    if request.at and wrong:
        return f"{request.at[:80]!r} names no instruction: write STEP:INSTRUCTION, such as 12:2B3"
    return name_problem("the node", request.node)

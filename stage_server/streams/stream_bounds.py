"""What may reach a node, from its peers, its operators and its coordinator (rule 18).

Pure: each function gives what is wrong in words, or nothing. What is early or late is not wrong: plans cross on their
way, and the worker waits for some tensors and drops others (rule 3). Wrong is what no node of this run ever says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from culm.pipeline.errors import JobError
from culm.pipeline.evaluations import NEVER, Evaluations
from culm.pipeline.flow import CROSSES
from culm.pipeline.identity import difference
from culm.pipeline.job import parse_job
from culm.pipeline.keys import ACROSS, EVALUATED, GRADIENT, PARTIAL, REDUCED, Key
from culm.pipeline.plan_bounds import (
    LONGEST_PLACE,
    MOST_INCARNATION,
    commit_problem,
    name_problem,
    number_problem,
    order_problem,
    plan_problem,
    text_problem,
)
from culm.pipeline.tally import LOSS_ALONE, TallyForm
from culm.pipeline.tensors.pytrees import MOST_TENSORS, of_text
from culm.pipeline.tensors.tensor_bounds import problem as header_problem
from culm.pipeline.tensors.value_layout import LONGEST_KEPT, facts_of
from culm.pipeline.tensors.values import CONSTANT, OUTPUT
from culm.pipeline.terms import LEAP
from culm.pipeline.ties import Addend, Ties, addends, numbered
from culm.pipeline.tree import is_block
from culm.pipeline.user_code.layer_shapes import (
    LayerShapes,
    Shape,
    accumulated,
    of_buckets,
    state_problem,
    unknown,
)
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.faults import Faults
from culm.stage_server.one_machine.slots import SLOTS

# What each message is held against:
#
#     Welcome                      nothing of the run is known yet: its term and its times are bounded
#     plans, commits, keys         the run's size: layers, steps, microbatches (``RunShape``)
#     Hello                        the highest term that the node knows
#     answers                      the run's size
#     headers of tensors, state    each layer's names, dtypes and shapes, from a sketch of the job's model
#
# The bounds are what a run can have at most, not what this moment's plan allows. A message that is right a moment
# earlier or later passes here, and the worker decides what to do with it.

# Heartbeats: with shorter pauses a node does nothing else, with longer ones nobody knows whether it lives. 0 is not
# said: the node keeps the pause that it has.
LEAST_BEAT_SECONDS, MOST_BEAT_SECONDS = 0.01, 3600.0
# In milliseconds, as gRPC takes its timeouts, it still fits into 32 bits.
MOST_PATIENCE_SECONDS = 1e6
OUTPUTS = {f"{OUTPUT}.{i}": i for i in range(MOST_TENSORS)}  # names of gradients


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """What a node knows of its run from the job alone."""

    pipelines: int
    microbatches: int  # of each pipeline
    steps: int  # that are trained
    layers: tuple[LayerShapes, ...]
    ties: Ties = ()
    tally: TallyForm = LOSS_ALONE  # numbers that a microbatch tells
    evaluations: Evaluations = NEVER
    on_graph: bool = False  # its pipelines are chunks, which exchange values

    def __post_init__(self) -> None:
        object.__setattr__(self, "_accumulated", accumulated(self.layers))

    @cached_property
    def _of_layers(self) -> list[list[Mapping[str, Shape]]]:
        tied: dict[int, set[str]] = {}
        for tie in self.ties:
            tied.setdefault(tie.layer, set()).update(own for own, _ in tie.names)
        return [of_buckets(layer, self.pipelines, tied.get(i, ())) for i, layer in enumerate(self.layers)]

    @cached_property
    def uses(self) -> frozenset[Addend]:
        """What later layers add to earlier ones' buckets."""
        return frozenset(x for of_layer in addends(numbered(self.counts), self.ties) for x in of_layer if x.use)

    @cached_property
    def buckets(self) -> tuple[Mapping[str, Shape], ...]:
        """What may be sent of each of the model's buckets."""
        return tuple(chain.from_iterable(self._of_layers))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many buckets each layer has."""
        return tuple(map(len, self._of_layers))

    @property
    def most_arrivals(self) -> int:
        """Tensors of one peer that may wait for a plan: twice what one node can owe another in two steps."""
        # In a step a stage sends for each microbatch an activation, a gradient and what it has accumulated, and for
        # each bucket a reduced gradient and less than twice as many blocks as pipelines. There are no more stages than
        # buckets.
        # On a graph a backward gives a gradient for each chunk at most.
        buckets = (len(self.buckets) + len(self.uses)) * (self.pipelines if self.on_graph else 1)
        return 4 * buckets * (self.pipelines * (3 * self.microbatches + self.evaluations.microbatches + 2) + 1)

    @cached_property
    def end(self) -> int:
        """Steps of the run, its closing one among them."""
        return self.evaluations.end(self.steps)

    def evaluated_in(self, step: int) -> int:
        """Microbatches that each pipeline evaluates in the step."""
        return self.evaluations.in_step(step, self.steps)

    def told_in(self, step: int) -> int:
        """Numbers that each pipeline's loss tells in a step."""
        return self.tally.told(self.microbatches if step < self.steps else 0, self.evaluated_in(step))

    def problem_of_accumulated(self, header: tensor_pb2.ValueHeader) -> str:
        return unknown(header, self._accumulated)  # type: ignore[attr-defined]


def hello_problem(hello: stage_pb2.Hello, known_term: int) -> str:
    """Of a peer's greeting. A term far above the known ones would make this node leave its coordinator for good."""
    # Before its first Welcome a node knows no term: then there is nothing to compare with (rule 15).
    if wrong := name_problem("its node", hello.node) or order_problem(hello.term, hello.generation):
        return f"a hello: {wrong}"
    if known_term and hello.term > known_term + LEAP:
        return f"a hello of term {hello.term}, where {known_term} is the highest known"
    return f"a hello of incarnation {hello.incarnation}" if hello.incarnation > MOST_INCARNATION else ""


def key_problem(key: Key, run: RunShape) -> str:
    """Of a key that names no tensor of this run."""
    layers = len(run.layers)
    # How many stages there are is the plan's matter, and a newer plan may have more: a stage has a layer at least.
    across = key.kind is REDUCED and key.pipeline != ACROSS
    if (key.kind is PARTIAL) != bool(key.end) or (key.end and not is_block(key.block, run.pipelines)):
        return f"a tensor {key}, which is no block of {run.pipelines} pipelines"
    if across or key.pipeline >= run.pipelines or key.stage >= layers or key.step >= run.end:
        return f"a tensor {key} of pipeline {key.pipeline}, in a run of {layers} layers and {run.end} steps"
    on_graph = run.on_graph and key.kind is GRADIENT
    if on_graph and key.use >= run.pipelines:
        return f"a tensor {key} for chunk {key.use}, and there are {run.pipelines}"
    if key.use and not on_graph and (key.kind is not PARTIAL or Addend(key.index, key.use) not in run.uses):
        return f"a tensor {key}, to which layer {key.use} adds nothing"
    most = run.microbatches if key.step < run.steps else 0  # the closing step trains nothing
    if key.kind in (PARTIAL, REDUCED):
        most = len(run.buckets)
    elif key.kind is EVALUATED:
        most = run.evaluated_in(key.step)
    return f"a tensor {key}, whose index has to be less than {most}" if key.index >= most else ""


def tensor_problem(key: Key, header: tensor_pb2.ValueHeader, run: RunShape) -> str:
    """Of a tensor whose first piece is here, and nothing of it in memory."""
    if wrong := key_problem(key, run):
        return wrong
    if key.kind in CROSSES:
        wrong = boundary_problem(header, key.kind is not GRADIENT)
        return f"{key}: {wrong}" if wrong else ""
    if wrong := header_problem(header):
        return wrong
    if key.kind in (PARTIAL, REDUCED):
        wrong = unknown(header, run.buckets[key.index])  # a layer without a gradient in this step names less
        pipelines = key.end - key.pipeline if key.kind is PARTIAL else run.pipelines
        with_tallies = key.index == len(run.buckets) - run.counts[-1]
        told = pipelines * run.told_in(key.step)
        fits = len(header.tallies) in ((0, told) if with_tallies else (0,))
    else:
        wrong = run.problem_of_accumulated(header)
        fits = len(header.tallies) in (0, key.index * run.tally.trained)
    if header.structure:
        wrong = wrong or "a structure"
    if not fits:
        wrong = f"{len(header.tallies)} tallies"
    return f"{key} with {wrong}" if wrong else ""


def boundary_problem(header: tensor_pb2.ValueHeader, is_activation: bool) -> str:
    """Of an activation, or of the gradients of one. Headers that differ in the digest alone are looked at once."""
    facts = facts_of(header)
    look = _boundary_problem if len(facts) <= LONGEST_KEPT else _boundary_problem.__wrapped__
    return look(facts, is_activation)


@lru_cache(maxsize=64)
def _boundary_problem(facts: bytes, is_activation: bool) -> str:
    header = tensor_pb2.ValueHeader.FromString(facts)
    if wrong := header_problem(header):
        return wrong
    if header.tallies:
        return f"{len(header.tallies)} tallies"
    if header.structure and not is_activation:
        return "a structure"
    names = [spec.name for spec in header.tensors]
    if is_activation:
        if not names:
            return "0 tensors"
        try:
            structure = of_text(header.structure, len(names))
        except ValueError as error:
            return str(error)
        if type(structure) is not list or structure[0] != "tuple" or len(structure) != 3:
            return "no target beside it"
        known = [(f"{OUTPUT}.{i}", f"{CONSTANT}.{i}") for i in range(len(names))]
        odd = [name for name, either in zip(names, known, strict=True) if name not in either]
    else:
        places = [OUTPUTS.get(name, -1) for name in names]
        odd = [name for name, place, last in zip(names, places, [-1, *places], strict=False) if place <= last]
    return f"the tensor {odd[0][:80]!r}" if odd else ""


def answer_problem(answer: stage_pb2.DeliverResponse, keys: Iterable[Key], run: RunShape) -> str:
    """Of what a receiver answers. It may be any number of steps ahead: no commit waits for a node that is being seeded.
    The worker keeps only what is near (``Position.awaits``).
    """
    for key in keys:
        if wrong := key_problem(key, run):
            return f"it acknowledges {wrong}"
    if (slot := max(answer.free_slots, default=0)) >= SLOTS:
        return f"it gives back slot {slot}, and there are {SLOTS}"
    if answer.HasField("synced"):
        synced, buckets = answer.synced, len(run.buckets)
        if synced.committed > run.end:
            return f"it says that {synced.committed} steps are committed, and the run has {run.end} steps"
        told = [*synced.reduced, *(cover.bucket for cover in synced.covers)]
        if len(told) > 2 * buckets + len(run.uses) or max(told, default=0) >= buckets:
            return f"it tells of {len(told)} buckets, or of one that does not exist; there are {buckets}"
        for cover in synced.covers:
            if cover.use and Addend(cover.bucket, cover.use) not in run.uses:
                return f"it covers what layer {cover.use} adds to bucket {cover.bucket}, which is nothing"
            if len(cover.pipelines) > run.pipelines or max(cover.pipelines, default=0) >= run.pipelines:
                return f"it covers {len(cover.pipelines)} pipelines of a bucket; there are {run.pipelines}"
        return order_problem(synced.term, synced.generation)
    return ""


def fetch_problem(layers: Sequence[int], count: int) -> str:
    """Of a request for layers' state."""
    if len(layers) > count or len(set(layers)) != len(layers):
        return f"it asks for {len(layers)} layers, of {count} that there are, or for one of them twice"
    beyond = [layer for layer in layers if layer >= count]
    return f"it asks for layer {beyond[0]}, and there are {count}" if beyond else ""


def timetable_problem(request: stage_pb2.GetTimetableRequest, end: int) -> str:
    """Of a request for a step's timetable; ``end``: the run's steps."""
    return f"it asks for step {request.step}, and the run has {end} steps" if request.step >= max(end, 1) else ""


def fetched_problem(piece: stage_pb2.FetchResponse, wanted: Sequence[int], run: RunShape | None) -> str:
    """Of the first piece of a layer's state; ``wanted``: what was asked for and is not here. No run: an operator's."""
    if piece.layer not in wanted:
        return f"layer {piece.layer}, which nobody asked for"
    if run is None:
        return header_problem(piece.header)
    if piece.version > run.end:
        return f"layer {piece.layer} at version {piece.version}, and the run has {run.end} steps"
    wrong = state_problem(piece.header, run.layers[piece.layer])
    return f"layer {piece.layer}: {wrong}" if wrong else ""


def welcome_problem(welcome: pb.Welcome) -> str:
    """Of the first order, when nothing is known of the run yet."""
    seconds = welcome.heartbeat_seconds
    if 0 < seconds < LEAST_BEAT_SECONDS:
        return f"heartbeat_seconds is {seconds}; the least that is taken is {LEAST_BEAT_SECONDS}"
    return (
        order_problem(welcome.term, 0)
        or number_problem("heartbeat_seconds", seconds, MOST_BEAT_SECONDS)
        or number_problem("patience_seconds", welcome.patience_seconds, MOST_PATIENCE_SECONDS)
    )


def job_problem(mine: str, theirs: str) -> str:
    """Of the job in a later Welcome: a node computes by the one with which it began (rule 23). Both as TOML."""
    if mine == theirs:
        return ""
    mend = "start the coordinator with the job as it was, or this node anew"
    try:
        differs = difference(parse_job(mine, "this node's job"), parse_job(theirs, "the coordinator's job"))
    except JobError as error:  # a version of Culm that knows other keys writes them all, also those of no effect
        return f"the coordinator's job is one of another version of culm: {error.where}: {error.what}; {mend}"
    return f"the coordinator's job is another one: {differs}; {mend}" if differs else ""


def order_problem_of(order: pb.AttendResponse, run: RunShape) -> str:
    """Of what the coordinator orders; its plans are whole."""
    body = order.WhichOneof("body")
    if body == "plan":
        return plan_problem(order.plan, len(run.layers), run.end, run.pipelines) or _cut_problem(order.plan, run)
    if body == "commit":
        wrong = commit_problem(order.commit, len(run.layers), run.end, run.pipelines, run.tally)
        return wrong or (_cut_problem(order.commit.next_plan, run) if order.commit.HasField("next_plan") else "")
    if body == "dismiss":
        return text_problem("why it is dismissed", order.dismiss.why)
    if body == "die":
        return place_problem(order.die.at)
    return ""


def _cut_problem(plan: pb.Plan, run: RunShape) -> str:
    """Of a plan that is right otherwise: its buckets are those of the job, whatever the shape."""
    for stage in (*plan.stages, *plan.target):
        mine = run.counts[stage.first_layer : stage.end_layer]
        said = tuple(stage.buckets) or (1,) * len(mine)
        if said != mine:
            where = f"layers {stage.first_layer} up to {stage.end_layer}"
            return f"the plan cuts {where} into {said[:8]} buckets; this job has {mine[:8]}"
    return ""


def place_problem(at: str) -> str:
    """Of an instruction to die at."""
    if wrong := text_problem("the instruction", at, LONGEST_PLACE):
        return wrong
    try:
        Faults([at] if at else [])
    except ValueError as error:
        return str(error)
    return ""

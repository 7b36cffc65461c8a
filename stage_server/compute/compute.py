"""Runs a worker's work with torch: the layers held, the stages owned, the data they need. One thread calls it."""

# What each piece of work does here; the worker decides their order (``worker/work.py``):
#
#     Arrange    builds layers and stages that the plan adds, drops those that it takes
#     Load       takes a microbatch's samples from the dataset, and keeps them for the forward
#     Run        one instruction of one stage: F, B or W; a B that completes a block gives its layers as it goes
#     Resume     an heir goes on from gradients that the lost owner has shipped
#     Reduce     a block of pipelines' gradient of a stage, by bucket
#     Sum        a bucket's gradient over all pipelines, of blocks from here and elsewhere
#     Apply      the optimizer's step, on layers owned and stood by for alike: the only change of weights
#     Install    the state of a layer from elsewhere, if it is of the same names, shapes and dtypes
#     Save       loans of layers, for a checkpoint
#     Check      the digest of a layer's state
#     Audit      the digest of a forward's output, of a stage that another node owns
#
# A stage's accumulators belong to one step and begin when its first work of the step comes (``_begin``). So an heir's
# stage begins the running step from its beginning, with empty accumulators (rule 9).
#
# What comes in lies in the host's memory, and so does what goes out: ``Device`` moves it. What an instruction gives is
# whole when its ``Result.copied`` has passed, which may be during the next one; all else is whole when ``do`` returns.
# Graphs stay on the device, but those of redundant forwards (``Keeping``). So do layers, but with ``standby = "host"``
# those that no duty of this node computes with (``HeldLayer.go_home``).

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from culm.pipeline import flow
from culm.pipeline.bookmark import Bookmark, Known
from culm.pipeline.instruction import Duty
from culm.pipeline.job import Job
from culm.pipeline.neighbours import Neighbours
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import Pytree, mapped
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.pipeline.user_code.graph.chunks import Chunks
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.auditing import Auditing, state_digest
from culm.stage_server.compute.copying import try_copying
from culm.stage_server.compute.device import PASSED, Device, Event, samples_here, value_here, value_home
from culm.stage_server.compute.graph_stage import GraphStage, MakesRuns, in_place
from culm.stage_server.compute.keeping import Keeping
from culm.stage_server.compute.layer import HeldLayer, Values
from culm.stage_server.compute.loading import Loading, Samples, Told, patiently
from culm.stage_server.compute.loading_ahead import LoadingAhead
from culm.stage_server.compute.loan import Loan
from culm.stage_server.compute.merging import Given
from culm.stage_server.compute.misfit import misfit
from culm.stage_server.compute.stage import Stage, merged, merged_layer
from culm.stage_server.tensor_work.aside import Aside
from culm.stage_server.worker.work import (
    Apply,
    Arrange,
    Audit,
    Check,
    Install,
    Load,
    Reduce,
    Resume,
    Run,
    Save,
    Sum,
    Work,
)

log = logging.getLogger("culm.compute")


@dataclass(slots=True, kw_only=True)  # not frozen: one is made after every instruction
class Result:
    """What a piece of work gave: a tensor to pass on, or gradients by layer."""

    value: Value | None = None
    copied: Event = PASSED  # before it has, nobody may read what an instruction gave: ``value`` and ``accumulated``
    values: Values = ()  # of a block of pipelines or of all
    lent: tuple[tuple[int, Loan], ...] = ()  # layers, for a checkpoint
    kept_bytes: int = 0  # of the graph of a redundant forward
    refused: str = ""  # why a state from elsewhere was not installed
    accumulated: Value | None = None  # what the stage's gradients have come to, to be shipped
    digest: int | None = None  # of a layer's state, or of a forward's output; None: there is none to compare
    later: "Future[Result] | None" = None  # it is under way, and all of this is still to come
    built: tuple[tuple[int, str], ...] = ()  # hashes of layers at their initial state, which is used from now on


class Compute:
    """All torch state of a node."""

    def __init__(self, job: Job, source: ModelSource, device: Device) -> None:
        self._job = job
        self._graph: Chunks | None = source.dataset() if job.graph is not None else None
        # Whoever computes has this lock, where instructions on a graph wait for workers; else one thread does.
        turn = threading.RLock()
        self._turn: AbstractContextManager[object] = turn if job.graph is not None else nullcontext()
        self.aside = Aside(turn, lambda index: self._layers[index].module) if job.graph is not None else None
        self._pipelines = job.pipeline.pipelines
        self._source = source
        self._device = device
        self._auditing = Auditing(job, source, device)
        self._layers: dict[int, HeldLayer] = {}
        # Invariant: one for each duty that this node runs, or may run ahead of its owner; their layers are held here.
        self._stages: dict[Duty, Stage | GraphStage] = {}
        self._ranges: dict[Duty, range] = {}  # the layers of each
        self._begun: dict[Duty, int] = {}  # the step that its accumulators belong to
        self._loading: Loading | None = None  # once a sample was taken here
        self.told_samples: Told = None  # by this node, of its datasets
        self.known: Callable[[], Known] = Known  # gives bookmarks
        ahead = LoadingAhead(job, lambda: self.told_samples, lambda: self.known()) if job.data.workers else None
        self._ahead = ahead
        # Whether processes of their own load samples, so that this thread has to in no bubble.
        self.loads_ahead = ahead is not None
        self._loaded: dict[Load, Samples] = {}  # ahead of the forward that takes them
        self.building: int | None = None  # the layer whose constructor runs
        self.loading: Callable[[], AbstractContextManager[None]] = nullcontext  # what is around every load
        # Called within a backward that completes a block, with a layer that is through, its values, and when
        # these are whole. None: layers leave with the Reduce that follows.
        self.leaving: Callable[[Reduce[Value], int, Values, Event], None] | None = None

    def warm_up(self) -> None:
        """Takes steps of the job's optimizer on nothing: torch imports a second's worth of code at the first one.

        Done before the node takes part; an heir or a standby cannot wait for it. The same steps try whether a copy of
        the optimizer goes on as it does. Raises JobError.
        """
        self._device.warm_up()
        parameter = torch.nn.Parameter(torch.zeros(1, device=self._device.place))
        parameter.sum().backward()  # type: ignore[no-untyped-call]
        for name in self._source.optimizers():
            make, like = partial(self._source.alone, name), self._source.parameters_like(name)
            try_copying(make, like, name or self._job.train.optimizer, self._device)
        self._source.learning_rate(0)  # it looks at every layer, once
        total, free = (count >> 20 for count in self._device.memory())
        log.info("this node computes on %s, %d of %d MB free", self._device.place, free, total)

    @property
    def neighbours(self) -> Neighbours | None:
        """Which chunks exchange values, where the job trains on a graph."""
        if self._graph is None:
            return None
        return replace(self._graph.neighbours, staleness=self._job.staleness)

    def layer(self, index: int) -> HeldLayer:
        return self._layers[index]

    def do(self, work: Work[Value] | Load) -> Result:
        """Runs one piece of work to its end, but for a ``Result.later``."""
        with self._turn:
            found = self._do(work)
            if self.aside is not None and isinstance(work, Arrange | Install | Apply):
                self.aside.edition += 1
            return found

    def parameters(self, layer: int, edition: int) -> Value | None:
        """A copy of those of a layer, for whoever does tensor work; None: they have changed since. Any thread asks."""
        aside = self.aside
        return aside.copies.get((layer, edition)) if aside is not None else None

    def _do(self, work: Work[Value] | Load) -> Result:
        if isinstance(work, Run):
            return self._run(work)
        if isinstance(work, Load):
            self._loaded[work] = self._load(work)
            return Result()
        if isinstance(work, Resume):
            self._begin(work.duty, work.step).resume(work.count, work.accumulated)
            return Result()
        if isinstance(work, Reduce):
            stages = [self._begin(duty, work.step) for duty, _ in work.tenures]
            given = self._given_here(work)
            values = merged(stages, work.block, self._pipelines, work.left, work.leaves, given)
            return Result(values=self._home(values.items()) if work.leaves else ())
        if isinstance(work, Sum):
            held = self._layers[work.layer]
            # Here, wherever they are from: a norm that the host's processor takes has other bits.
            uses = [{block: value_here(self._device, value) for block, value in of_use} for _, of_use in work.uses]
            whole = held.sum_up(uses, self._pipelines, self._job.train.clip_norm is not None)
            return Result(values=self._home([(Addend(work.bucket), whole)]))
        if isinstance(work, Check):
            return Result(digest=state_digest(self._layers[work.layer], self._device))
        if isinstance(work, Audit):
            layers = [self._layers[i] for i in work.layers]
            return Result(digest=self._auditing.run(work, layers, self._samples_again, self._passed_on))
        if isinstance(work, Save):
            return Result(lent=tuple((layer, self._layers[layer].lend()) for layer in work.layers))
        if isinstance(work, Apply):
            if not work.catch_up:  # that one comes in the middle of a step, whose graphs are still needed
                for stage in self._stages.values():
                    stage.end_step()
                self._loaded = {load: found for load, found in self._loaded.items() if load.step > work.step}
            for layer, gradients in work.gradients:
                held = self._layers[layer]
                held.apply(held.cut.joined(gradients), work.scale, work.step)
        elif isinstance(work, Install):
            wrong = misfit(self._layers[work.layer].module, work.state)
            if wrong:
                return Result(refused=wrong)
            self._layers[work.layer].install(work.state)
        else:
            self._arrange(work)
            return Result(built=tuple((layer, self._layers[layer].digest()) for layer in work.initial))
        return Result()

    def _arrange(self, work: Arrange) -> None:
        if work.anew:
            self._layers.clear()
            self._stages.clear()
            self._begun.clear()
        self._layers = {i: self._layers[i] if i in self._layers else self._build(i) for i in work.layers}
        for i, addends in zip(work.layers, work.addends, strict=bool(work.addends)):
            self._layers[i].cut.arrange(addends)
        ranges = dict(work.duties)
        for duty in [duty for duty in self._stages if ranges.get(duty) != self._ranges[duty]]:
            self._stages.pop(duty).begin_step(work.step)  # drops its graphs and gradients, restores its buffers
            self._begun.pop(duty, None)
        for duty in work.fresh:  # half a step's gradients may still be here, which the worker does not count
            self._begun.pop(duty, None)
        for duty, held in ranges.items():
            if duty not in self._stages:
                layers = [self._layers[i] for i in held]
                splits = self._job.schedule.splits_at(duty.stage)
                first, last = flow.takes_samples(duty.stage), flow.ends_in_loss(duty.stage, work.stages)
                loss, rate = self._source.loss, self._source.learning_rate
                if self._graph is not None:
                    (layer,) = layers
                    alone = GraphStage(self._job, self._graph, duty.pipeline, layer, first, last, loss, rate)
                    self._stages[duty] = alone
                    continue
                self._stages[duty] = Stage(self._job, duty.pipeline, layers, first, last, loss, splits, rate)
        self._ranges = ranges
        if self._graph is not None:
            self._graph.keep({duty.pipeline for duty in ranges})
        if self._job.resilience.standby == "host":
            computed = {i for held in ranges.values() for i in held}
            for index, layer in self._layers.items():
                if index in computed:
                    layer.come_here()
                else:
                    layer.go_home()

    def _build(self, index: int) -> HeldLayer:
        self.building = index
        layer = HeldLayer.build(self._source, index, self._device)
        self.building = None
        return layer

    def _begin(self, duty: Duty, step: int) -> Stage | GraphStage:
        runner = self._stages[duty]
        if self._begun.get(duty) != step:
            runner.begin_step(step)
            self._begun[duty] = step
        return runner

    @property
    def loaded(self) -> Collection[Load]:
        """Microbatches whose samples are here."""
        return self._loaded.keys()

    def want(self, loads: Iterable[Load]) -> None:
        """What the next forwards will take, in order. Returns at once."""
        if self._ahead is not None:
            self._ahead.want(load for load in loads if load not in self._loaded)

    def close(self) -> None:
        """Ends the processes that load, and lets tensor workers go."""
        if self.aside is not None:
            self.aside.close()
        if self._ahead is not None:
            self._ahead.close()

    def _load(self, load: Load) -> Samples:
        if self._graph is not None:
            with self.loading():  # ahead of the first forward; then it is kept
                patiently(partial(self._graph.chunk, load.pipeline), f"chunk {load.pipeline}")
            return (), ()
        if self._ahead is not None:
            with self.loading():
                return self._ahead.take(load)
        return self._loads_itself().load(load)

    def _loads_itself(self) -> Loading:
        if self._loading is None:
            self._loading = Loading(self._job, self.told_samples, self.loading, lambda: self.known())
        return self._loading

    def take_bookmark(self) -> Bookmark | None:
        """Of an iterable dataset, where a step's samples have all been read since the last call."""
        loads = self._ahead or self._loading
        return loads.take_bookmark() if loads is not None else None

    def _samples(self, load: Load) -> Samples:
        return self._loaded.pop(load, None) or self._load(load)

    def _samples_again(self, load: Load) -> Samples | None:
        """Those of a forward that another node has run; None of an iterable dataset, which is read in order."""
        loading = self._loads_itself()
        return None if loading.reads_in_order else loading.load(load)

    def _run(self, work: Run[Value]) -> Result:
        duty, op, m = work.instruction
        runner = self._begin(duty, work.step)
        if isinstance(runner, GraphStage):
            return self._run_on_graph(work, runner)
        first, last = runner.first, runner.last
        if op in flow.FORWARDS:
            if first:
                inputs, target = self._samples(Load(work.step, duty.pipeline, m, evaluated=op == "E"))
            else:
                inputs, target = work.operands[0].output_and_target()
            x = samples_here(self._device, inputs)
            # It was received, and a loss may write into it: whoever runs the forward again needs it as it came.
            compared = mapped(copy_of, samples_here(self._device, target)) if last else None
            if op == "E":
                passed_on = runner.evaluate(m, x, compared)
                value = self._passed_on(passed_on, target) if passed_on is not None else None
                return self._gave(work, runner, value)
            if work.redundant:
                with Keeping(self._device) as kept:
                    output = runner.forward(m, x, compared)
                return self._gave(work, runner, None if last else self._passed_on(output, target), kept.size)
            output = runner.forward(m, x, compared)
            return self._gave(work, runner, None if last else self._passed_on(output, target))
        if op == "W":
            runner.backward_of_parameters(m)
            return self._gave(work, runner, None)
        given = {i: x for operand in work.operands for i, x in value_here(self._device, operand).by_place().items()}
        gradients = runner.backward(m, given, work.accumulates, self._through(work.completes))
        return self._gave(work, runner, value_home(self._device, Value.gradients(gradients)))

    def _run_on_graph(self, work: Run[Value], stage: GraphStage) -> Result:
        duty, op, m = work.instruction
        if op == "F":
            self._samples(Load(work.step, duty.pipeline, m))
        if self.aside is not None and self.aside.is_wanted:
            return Result(later=self.aside.start(partial(self._pass_on_graph, work, stage, self.aside.runs)))
        return self._pass_on_graph(work, stage)

    def _pass_on_graph(self, work: Run[Value], stage: GraphStage, runs: MakesRuns = in_place) -> Result:
        duty, op, _ = work.instruction
        if op == "F":
            given = [torch.as_tensor(operand.output_and_target()[0]) for operand in work.operands]
            output = stage.forward(given, runs)
            return Result(value=None if stage.last else Value.activation(output.requires_grad_(), ()))
        after = self._graph.neighbours.after[duty.pipeline] if self._graph is not None else ()
        found = {q: x.by_place() for q, x in zip(after, work.operands, strict=False)}
        gradients = stage.backward({q: of[0] for q, of in found.items() if of}, work.accumulates)
        return Result(value=Value.gradients(gradients))

    def _passed_on(self, output: Pytree, target: Pytree) -> Value:
        return value_home(self._device, Value.activation(output, target))

    def _through(self, work: Reduce[Value] | None) -> Callable[[HeldLayer], None] | None:
        """What becomes of a layer within the last backward of a block; None: nothing before the backward is done."""
        # A whole sum tells its norm. To have that from a card would be to wait for all that the card was given so far.
        waits = work is not None and work.block == Block(0, self._pipelines) and not self._device.in_host
        if work is None or self.leaving is None or waits:
            return None
        return partial(self._leave, work, self.leaving, [self._begin(duty, work.step) for duty, _ in work.tenures])

    def _leave(
        self,
        work: Reduce[Value],
        leaving: Callable[[Reduce[Value], int, Values, Event], None],
        stages: list[Stage | GraphStage],
        layer: HeldLayer,
    ) -> None:
        values = merged_layer(stages, layer, work.block, self._pipelines, given=self._given_here(work))
        home = tuple((addend, value_home(self._device, value)) for addend, value in values)
        leaving(work, layer.index, home, self._device.copied())

    def _gave(self, work: Run[Value], runner: Stage, value: Value | None, kept_bytes: int = 0) -> Result:
        """An instruction is over when its device is done: that is what its time is taken for. What it gave follows."""
        accumulated = runner.accumulated(work.ships) if work.ships else None
        if self._device.in_host:
            return Result(value=value, kept_bytes=kept_bytes, accumulated=accumulated)
        if accumulated is not None:
            accumulated = value_home(self._device, accumulated)
        copied = self._device.copied() if accumulated is not None or (value is not None and value.tensors) else PASSED
        self._device.computed().wait()
        if work.redundant:  # nobody waits for it; the graph that it leaves is copied as well
            copied.wait()
            copied = PASSED
        return Result(value=value, copied=copied, kept_bytes=kept_bytes, accumulated=accumulated)

    def _given_here(self, work: Reduce[Value]) -> Given:
        """What has left in smaller blocks, where it is to be added up."""
        return [(addend, block, value_here(self._device, value)) for addend, block, value in work.given]

    def _home(self, values: Iterable[tuple[Addend, Value]]) -> Values:
        """Values, whole in the host's memory."""
        home = tuple((addend, value_home(self._device, value)) for addend, value in values)
        self._device.copied().wait()
        return home

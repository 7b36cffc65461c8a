"""A play of one worker: what happens to it in words, and what it then computes, sends, reports and asks for."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

from culm.pipeline.commit import Commit
from culm.pipeline.flow import maker_of
from culm.pipeline.keys import ACCUMULATED, ACTIVATION, GRADIENT, PARTIAL, REDUCED, Key
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Buckets, Member, Plan, Redundancy, StagePlan, Standby
from culm.pipeline.schedule import Schedule
from culm.pipeline.ties import Addend
from culm.simulator.histories.arithmetic import Number
from culm.stage_server.worker import effects
from culm.stage_server.worker.validate import validate
from culm.stage_server.worker.work import Apply, Arrange, Audit, Check, Install, Reduce, Resume, Run, Save, Sum, Work
from culm.stage_server.worker.worker import Worker

KINDS = {ACTIVATION: "activation", GRADIENT: "gradient"}


def named(key: Key) -> str:
    """A tensor as people say it."""
    step = f" of step {key.step}"
    if key.kind is REDUCED:
        return f"the reduced gradient of layer {key.index}{step}"
    if key.kind is PARTIAL:
        return f"the sum over pipelines {key.block} of layer {key.index}{step}"
    if key.kind is ACCUMULATED:
        return f"what stage {key.stage} has accumulated over {key.index} microbatches{step}"
    return f"the {KINDS[key.kind]} of {maker_of(key)}{step}"


def layers_of(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}" if layers else "no layer"


class WorkerPlay:
    """Two microbatches, and stages of one layer each: stage 2 is layer 2. Every peer is in its first incarnation.

    ``width``: layers of each stage, where they are more.
    """

    def __init__(self, name: str, steps: int = 4, eager: bool = False, width: int = 1) -> None:
        self.worker: Worker[Number] = Worker(name, 1, Schedule(2), steps, eager=eager)
        self.lines: list[str] = []
        self._peers: set[str] = {name}
        self._width = width
        self._running: Run[Number] | None = None

    # ---- what happens -----------------------------------------------------------------------------------------------

    def plan(
        self,
        generation: int,
        stages: str,
        *,
        term: int = 1,
        era: int = 0,
        step: int = 0,
        origin: Origin | None = None,
        eager: bool | None = None,
    ) -> Plan:
        """``stages``: a word a stage, such as ``n1+n0`` or ``n1+n3(seeding)``; with two pipelines ``n0/n1*``, whose
        reducer is n1.
        """
        words = [stage.split("+") for stage in stages.split()]
        made = []
        for s, (owner, *standbys) in enumerate(words):
            standing_by = tuple(Standby(b.removesuffix("(seeding)"), hot="(seeding)" not in b) for b in standbys)
            owners = tuple(owner.replace("*", "").split("/"))
            reducers = tuple(name.removesuffix("*") for name in owner.split("/") if name.endswith("*"))
            width = self._width
            made.append(StagePlan(s * width, (s + 1) * width, owners, standing_by, Buckets((), reducers * width)))
        names = {n for stage in made for n in stage.holders()} | {self.worker.node}
        return Plan(
            term=term,
            generation=generation,
            era=era,
            step=step,
            stages=tuple(made),
            members={name: Member(name, 1) for name in sorted(names)},
            origin=origin or Origin(),
            redundancy=Redundancy(eager=eager) if eager is not None else None,
        )

    def takes_plan(self, plan: Plan, words: str) -> None:
        stages = " ".join(
            "+".join([_owners(s), *(b.node + ("" if b.hot else "(seeding)") for b in s.standbys)]) for s in plan.stages
        )
        self._say(f"plan {plan.generation} of term {plan.term} comes: {words} [{stages}]")
        self.worker.take_plan(plan)
        self._after()

    def takes_commit(self, step: int, next_plan: Plan | None = None, scale: float = 1.0) -> None:
        then = f", with plan {next_plan.generation} for the next" if next_plan is not None else ""
        self._say(f"step {step} is committed{then}")
        at = self.worker.at
        self.worker.take_commit(Commit(term=at.term, era=at.era, step=step, scale=scale, next_plan=next_plan))
        self._after()

    def receives(self, peer: str, key: Key, generation: int | None = None) -> None:
        """From a peer that obeys the same plan, or that of the generation."""
        order = self.worker.at.plan.order if self.worker.at.plan is not None else (1, 1)
        under = f", under plan {generation}" if generation is not None else ""
        self._say(f"{peer} sends {named(key)}{under}")
        value = Number(1, squared_norms=(1.0,), tallies=(1.0, 1.0) if key.kind is REDUCED else ())
        self.worker.deliver(peer, 1, order if generation is None else (order[0], generation), key, value)
        self._after()

    def hears_hello(self, peer: str, generation: int, term: int = 1) -> None:
        self._say(f"{peer} says hello under plan {generation} of term {term}")
        self.worker.hello(peer, 1, (term, generation))
        self._after()

    def hears_synced(
        self, peer: str, covers: Mapping[int, frozenset[int]] = MappingProxyType({}), reduced: tuple[int, ...] = ()
    ) -> None:
        """The answer to this node's own Hello."""
        at = self.worker.at
        assert at.plan is not None
        more = "".join(f", and pipelines {sorted(c)} of layer {layer}" for layer, c in covers.items())
        more += f", and the whole sum of {layers_of(reduced)}" if reduced else ""
        self._say(f"{peer} has told all that it holds of this node's{more}")
        standing = effects.Standing(
            order=at.plan.order,
            era=at.era,
            committed=at.version,
            covers={Addend(layer): pipelines for layer, pipelines in covers.items()},
            reduced=frozenset(reduced),
        )
        self.worker.synced(peer, standing)
        self._after()

    def is_acknowledged(self, peer: str, *keys: Key) -> None:
        self._say(f"{peer} acknowledges {' and '.join(map(named, keys))}")
        self.worker.acknowledged(peer, 1, keys)
        self._after()

    def fetched(self, layer: int, version: int) -> None:
        self._say(f"layer {layer} arrives at version {version}")
        self.worker.fetched(self.worker.era, layer, version, Number(version), "n0")
        self._after()

    def fetch_fails(self, peer: str, *layers: int) -> None:
        self._say(f"{peer} cannot send {layers_of(layers)}")
        self.worker.fetch_failed(self.worker.era, peer, layers)
        self._after()

    def stream_breaks(self, peer: str) -> None:
        """The sender opens another one and sends what the peer has not acknowledged (``Sender``)."""
        self._say(f"the stream to {peer} breaks, and is opened again")
        plan, outbox = self.worker.plan, self.worker.post.outbox
        assert plan is not None
        for key in outbox:
            if peer in outbox.unacknowledged(key, plan):
                self._note(f"sends {named(key)} to {peer} again")

    # ---- what it computes -------------------------------------------------------------------------------------------

    def computes(self, most: int = 100) -> None:
        """All that it has to do now, or so many pieces of work."""
        for _ in range(most):
            work = self.worker.next_work()
            if work is None:
                break
            self._compute(work)
        else:
            return
        if (awaited := self.worker.awaited) is not None:
            self._note(f"waits for {named(awaited)}")

    def begins(self) -> None:
        """The next piece of work, which is an instruction."""
        work = self.worker.next_work()
        assert isinstance(work, Run)
        self._running = work
        self._note(f"begins {work.instruction} of step {work.step}")

    def is_through(self, layer: int) -> None:
        """The backward that runs goes on to the layers before this one."""
        assert self._running is not None
        assert self._running.completes is not None
        self._note(f"is through with layer {layer}")
        self.worker.runner.summing.leaves(self._running.completes, layer)
        value = Number(1, squared_norms=(1.0,))
        self.worker.has_left(self._running.completes, [(Addend(layer), value)])
        self._after()

    def ends(self) -> None:
        """The instruction that runs."""
        assert self._running is not None
        self._note(f"ends {self._running.instruction} of step {self._running.step}")
        self.worker.finish(self._running, Number(1))
        self._after()

    def computes_ahead(self) -> None:
        """What it has time for while it waits: a forward of a stage that it stands by for."""
        work = self.worker.next_redundant()
        if work is None:
            self._note("has no forward to run ahead")
        else:
            self._compute(work)

    def _compute(self, work: Work[Number]) -> None:
        self._note(_said(work))
        result = Number(1) if isinstance(work, Run) else None
        values: tuple[tuple[Addend, Number], ...] = ()
        if isinstance(work, Reduce | Sum):
            layers = [work.layer] if isinstance(work, Sum) else self._merged(work)
            values = tuple((Addend(layer), Number(1, squared_norms=(1.0,), tallies=(1.0, 1.0))) for layer in layers)
        self.worker.finish(work, result, values)
        self._after()

    def _merged(self, work: Reduce[Number]) -> list[int]:
        first = work.stage * self._width
        return sorted({*range(first, first + self._width)} - work.left)

    # ---- the text ---------------------------------------------------------------------------------------------------

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def _say(self, words: str) -> None:
        self.lines.append(words)

    def _note(self, words: str) -> None:
        self.lines.append(f"    {self.worker.node} {words}")

    def _after(self) -> None:
        validate(self.worker)
        effects.carry_out(self.worker.drain(), self)

    # ---- effects (culm.stage_server.worker.effects.Node) ------------------------------------------------------------

    def send(self, effect: effects.Send) -> None:
        self._note(f"sends {named(effect.key)} to {effect.peer}")

    def acknowledge(self, effect: effects.Acknowledge) -> None:
        self._note(f"acknowledges {named(effect.key)} to {effect.peer}")

    def say_hello(self, effect: effects.SayHello) -> None:
        self._note(f"says hello to {effect.peer}")

    def answer_hello(self, effect: effects.AnswerHello) -> None:
        standing = effect.standing
        self._note(f"tells {effect.peer} that this is all: of era {standing.era} it knows {standing.committed} commits")

    def forfeit(self, effect: effects.Forfeit) -> None:
        self._note(f"gives up what it holds, and is to join anew: {effect.why}")

    def fetch_layers(self, effect: effects.FetchLayers) -> None:
        self._note(f"asks {effect.peer} for {layers_of(effect.layers)}")

    def restore_layers(self, effect: effects.RestoreLayers) -> None:
        where = effect.origin.folder
        self._note(f"reads {layers_of(effect.layers)} from the checkpoint of step {effect.origin.step} in {where}")

    def report(self, fact: effects.ReportReady | effects.ReportCaughtUp | effects.ReportResumed) -> None:
        match fact:
            case effects.ReportReady():
                redone = f", with {fact.redone} instructions redone" if fact.redone else ""
                self._note(f"reports stage {fact.stage} of step {fact.step} ready{redone}")
            case effects.ReportCaughtUp():
                self._note(f"reports that layer {fact.first_layer} has caught up, at version {fact.version}")
            case effects.ReportResumed():
                self._note(f"reports that stage {fact.stage} goes on here")
            case _:
                assert_never(fact)

    def adopted(self, effect: effects.Adopted) -> None:
        self._note(f"obeys plan {effect.plan.generation}")


def _owners(stage: StagePlan) -> str:
    reducer = stage.buckets.reducers[0] if stage.buckets.reducers else None
    return "/".join(f"{name}*" if name == reducer else name for name in dict.fromkeys(stage.owners))


def _said(work: Work[Number]) -> str:
    match work:
        case Run():
            return f"computes {work.instruction} of step {work.step}" + (
                " ahead, as a standby" if work.redundant else ""
            )
        case Arrange():
            ready = ", ".join(str(duty) for duty, _ in work.duties) or "none"
            return f"makes room for {layers_of(work.layers)} and gets ready for duties: {ready}"
        case Reduce():
            of = f" over pipelines {work.block}" if work.block.end > 1 else ""
            of += f", but for {layers_of(sorted(work.left))}" if work.left else ""
            again = {str(block): None for _, block, _ in work.given}
            of += f", upon {' and '.join(again)}, which has left" if again else ""
            return f"adds up the gradient of stage {work.stage} of step {work.step}{of}"
        case Sum():
            return f"adds up layer {work.layer} of step {work.step} over all pipelines"
        case Resume():
            return f"goes on from what stage {work.duty.stage} had accumulated over {work.count} microbatches"
        case Apply():
            layers = layers_of([layer for layer, _ in work.gradients])
            if work.catch_up:
                return f"lets {layers} catch up with step {work.step}"
            return f"applies step {work.step} to {layers}"
        case Install():
            return f"puts layer {work.layer} in place, at version {work.version}"
        case Save():
            return f"saves {layers_of(work.layers)} at step {work.step}"
        case Check():
            return f"takes the digest of layer {work.layer} at version {work.version}"
        case Audit():
            return f"runs forward {work.microbatch} of duty {work.duty} in step {work.step} again, to audit it"
        case _:
            assert_never(work)

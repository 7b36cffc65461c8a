"""What a node tells its coordinator, and tells it again when it (re)attaches (rule 6).

Facts, not votes: "this incarnation holds the whole reduced gradient of these layers for (era, step)" stays true
whatever plan follows, so it is said once a step, and repeated as it was said.
"""

# Three kinds of facts:
#
# - *ready*: the whole reduced gradient of a part, and the state it is to be applied to, are here. The commit's gate
#   counts these (rule 6). A part is what this node holds of a stage: all of it, or under a plan that prepares another
#   cut a piece of it, so the layers are named and not only the stage.
# - *caught up*: a part that was behind is at the committed version. The coordinator makes its holder hot at a commit.
# - *settled*: the same while no step runs, after the last commit (rule 17) and in a pause (rule 24): nothing commits
#   then that could make a copy hot.

from itertools import chain
from typing import Generic

from culm.pipeline import flow
from culm.pipeline.plan import Plan
from culm.pipeline.tally import in_order
from culm.stage_server.worker.checking import Checking
from culm.stage_server.worker.effects import Effect, ReportCaughtUp, ReportReady
from culm.stage_server.worker.holdings import Holdings
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.post import Post
from culm.stage_server.worker.runner import Runner
from culm.stage_server.worker.work import V

Part = tuple[int, int, int]  # a stage, or what this node holds of it: stage, first layer, end


class Facts(Generic[V]):
    """Each method reports what has become true since the last call; ``progress`` after every event."""

    def __init__(
        self,
        position: Position,
        holdings: Holdings[V],
        post: Post[V],
        runner: Runner[V],
        checking: Checking[V],
        effects: list[Effect],
    ) -> None:
        self._at = position
        self._checking = checking
        self._holdings = holdings
        self._post = post
        self._runner = runner
        self._effects = effects
        # Of the running step. Said once each, or where the job audits once under each plan; what was said is what is
        # repeated, also under another plan.
        # By the whole part: a lost node may give the whole stage to a node that was ready with a part of it, and both
        # begin at the same layer.
        self.ready: dict[Part, ReportReady] = {}
        # While no step runs, by first layer: seeded copies, as they were said under one plan.
        self.settled: dict[int, ReportCaughtUp] = {}

    def progress(self) -> None:
        """Asks for layers that are to be seeded, and reports what has become true."""
        plan = self._at.plan
        if plan is None:
            return
        if not self._at.rests:
            self._effects.extend(self._holdings.fetches(plan, self._at.node))
            self.note_ready(plan)
            return
        # Seeding goes on, though no later gradient and no commit comes: a gap shows by nothing else (rules 17 and 24).
        self._holdings.close_gaps()
        self._effects.extend(self._holdings.fetches(plan, self._at.node))
        self.note_settled(plan)

    def note_ready(self, plan: Plan) -> None:
        """Of every part whose reduced gradient and state are here."""
        whole = self._post.mailbox.whole(self._at.version)
        for stage, layers in plan.parts_of(self._at.node):
            part = (stage, layers.start, layers.stop)  # under another plan of the step it may have been a smaller one
            if self._is_told(part, plan) or any(not plan.sums_of[layer] <= whole for layer in layers):
                continue
            # A node that is being seeded may have the gradient before the state. If that were a fact, a node without
            # state could become an owner (rule 6).
            if not self._holdings.are_at(self._at.version, layers) or self._checking.lacks(stage, layers):
                continue
            # The last layer's first value carries the tallies, so a standby of the last stage can report them as well.
            # What it has of an earlier layer's bucket tells its norm there (rule 22).
            values = [[self._post.mailbox.get(self._at.reduced(b)) for b in plan.buckets_of(stage, x)] for x in layers]
            tallies = values[-1][0].tallies if flow.ends_in_loss(stage, len(plan.stages)) else ()
            report = ReportReady(
                era=self._at.era,
                step=self._at.version,
                stage=stage,
                first_layer=layers.start,
                squared_norms=tuple(in_order(chain(*(v.squared_norms for v in of_layer))) for of_layer in values),
                tallies=tallies,
                redone=self._runner.redone(stage),
                states=self._checking.states_of(layers),
                audited=self._checking.audited(stage),
                taken=self._checking.taken(stage),
                order=plan.order if self._at.audit else None,
            )
            self.ready[part] = report
            self._effects.append(report)

    def _is_told(self, part: Part, plan: Plan) -> bool:
        """Another plan of the step may name other auditors: then the fact is told once more, with what they found."""
        return part in self.ready and self.ready[part].order in (None, plan.order)

    def note_caught_up(self, plan: Plan, applied: set[int]) -> None:
        """Of parts with a layer whose missed step was just ``applied``. Their gradients may come after their commits
        for ever: the coordinator is to wait for this node, too.
        """
        for _, layers in plan.parts_of(self._at.node):
            if not applied.isdisjoint(layers) and self._holdings.are_at(self._at.version, layers):
                self._effects.append(self._caught_up(layers, plan))

    def note_settled(self, plan: Plan) -> None:
        """While no step runs: of seeded copies that are whole. Each counts for one plan, so it is said under all."""
        self.settled = {first: x for first, x in self.settled.items() if x.order == plan.order}
        for stage, layers in plan.parts_of(self._at.node):
            if self._at.node in plan.stages[stage].required() or layers.start in self.settled:
                continue
            if self._holdings.are_at(self._at.version, layers):
                report = self.settled[layers.start] = self._caught_up(layers, plan)
                self._effects.append(report)

    def repeated(self) -> tuple[ReportReady, ...]:
        """All that was reported of the running step, for a coordinator that may have missed it (rule 6)."""
        return tuple(self.ready.values())

    def repeated_settled(self) -> tuple[ReportCaughtUp, ...]:
        """Which seeded copies are at the last version, for a coordinator that may have missed it."""
        return tuple(self.settled.values()) if self._at.rests else ()

    def end_step(self) -> None:
        self.ready.clear()

    def _caught_up(self, layers: range, plan: Plan) -> ReportCaughtUp:
        return ReportCaughtUp(self._at.era, layers.start, layers.stop, self._at.version, plan.order)

"""How a stage's gradient becomes one over all pipelines: blocks that leave this node, and layers that it adds up."""

# A step's gradient is one binary tree over the pipelines (``culm.pipeline.tree``). With three owners of a stage in a
# job of four pipelines, layer 5's reducer being n1:
#
#     n0 runs 0 and 1    --PARTIAL [0,2)-->   n1 runs 2   [2,3) is its own   <--PARTIAL [3,4)--   n2 runs 3
#                                              |  [2,4) = [2,3) + [3,4), then [0,4) = [0,2) + [2,4)
#                                              +--REDUCED--> n0, n2, and every standby
#
# A stage's one owner is the reducer of all its layers, and its own block is the whole: nothing is sent before REDUCED.
#
# A reducer that was named within a step, in place of a lost one, may not simply add up: the lost one may have sent its
# sum to some holders. On equal hardware it would be the same sum; on other hardware holders would differ from then on.
# So it waits until every holder has said, under the present plan, that it has none. One that has passes it on instead.

from collections.abc import Collection, Iterable
from typing import Generic

from culm.pipeline.instruction import Duty
from culm.pipeline.plan import Plan
from culm.pipeline.tree import Block
from culm.stage_server.worker import reduction
from culm.stage_server.worker.duty import Duties
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.post import Post
from culm.stage_server.worker.work import Reduce, Sum, V


class Summing(Generic[V]):
    """Reads the records of the duties and what has come; writes into which block a duty's gradient went."""

    def __init__(self, position: Position, duties: Duties[V], post: Post[V]) -> None:
        self._at = position
        self._duties = duties
        self._post = post
        # Layer -> the step from which on this node is its reducer. Another one may have summed up that very step, also
        # where the plan came with a commit: a node may have been lost since, where the commit was late.
        self._named: dict[int, int] = {}

    def adopt(self, plan: Plan, before: Plan | None, anew: bool) -> None:
        """``before``: the plan so far; ``anew``: an era begins, and nobody has summed up anything of it."""
        mine = self._reduced_here(plan)
        known = self._reduced_here(before) if before is not None and not anew else mine
        kept = {layer: step for layer, step in self._named.items() if layer in mine}
        self._named = {**kept, **dict.fromkeys(mine - known, self._at.committed)} if not anew else {}

    def end_step(self) -> None:
        self._named = {layer: step for layer, step in self._named.items() if step >= self._at.version}

    def _reduced_here(self, plan: Plan) -> set[int]:
        return {x for s, x in plan.held_layers(self._at.node) if plan.stages[s].reducer_of(x) == self._at.node}

    # ---- what leaves this node --------------------------------------------------------------------------------------

    def next_reduce(self, stage: int, done: Collection[int], expected: Collection[int]) -> Reduce | None:
        """The next block to merge of the stage's gradient. ``done``, ``expected``: see ``reduction.next_block``."""
        steps = {p: self._duties[Duty(p, stage)] for p in done}
        if all(step.sent for step in steps.values()) or self._post.holds_whole(stage):
            return None
        merged = {step.block for step in steps.values() if step.block is not None}
        sent = {step.block for step in steps.values() if step.block is not None and step.sent}
        found = reduction.next_block(done, expected, merged, sent, self._pipelines)
        if found is None:
            return None
        block, leaves = found
        duties = [Duty(p, stage) for p in block.pipelines]
        tenures = tuple((duty, self._tenure(duty)) for duty in duties)
        return Reduce(stage=stage, step=self._at.version, block=block, leaves=leaves, tenures=tenures)

    def reduced(self, work: Reduce, values: Iterable[tuple[int, V]]) -> None:
        """Takes a block's gradient, a value a layer. Of duties that are no longer this node's it is dropped."""
        if work.step != self._at.version or not all(self._duties.is_current(*each) for each in work.tenures):
            return
        for duty, _ in work.tenures:
            self._duties[duty].block, self._duties[duty].sent = work.block, work.leaves
        for layer, value in values:
            if work.block == Block(0, self._pipelines) and self._may_sum(work.stage, layer):
                self._put_whole(work.stage, layer, value)
            elif self._at.reduced(work.stage, layer) not in self._post.mailbox:
                self._post.put_out(self._at.partial(work.stage, layer, work.block), value)

    # ---- what this node adds up -------------------------------------------------------------------------------------

    def next_sum(self) -> Sum[V] | None:
        """A layer of which every pipeline is here, and the whole sum is not."""
        mailbox = self._post.mailbox
        for whole, blocks in mailbox.partials(self._at.version):
            there = sum(len(block.pipelines) for block in blocks)
            if there == self._pipelines and self._may_sum(whole.stage, whole.index):
                values = ((b, mailbox.get(self._at.partial(whole.stage, whole.index, b))) for b in blocks)
                return Sum(whole.stage, whole.index, self._at.version, tuple(values))
        return None

    def summed(self, work: Sum[V], value: V) -> None:
        """Takes a layer's whole gradient, if it is still this node's to sum up."""
        if work.step == self._at.version and self._may_sum(work.stage, work.layer):
            self._put_whole(work.stage, work.layer, value)

    def _may_sum(self, stage: int, layer: int) -> bool:
        """Whether this node is the layer's reducer, and no holder has a sum of another one."""
        at, plan = self._at, self._at.plan
        if plan is None or stage >= len(plan.stages) or layer not in plan.stages[stage].layers:
            return False
        if plan.stages[stage].reducer_of(layer) != at.node:
            return False
        if self._named.get(layer) != at.version:
            return True
        told = [self._post.told(peer) for peer in plan.receivers(stage, layer) if peer != at.node]
        # One that is steps ahead knows that this step is committed: then the sum is with whoever was required for it.
        return all(x is not None and layer not in x.reduced and x.committed <= at.version for x in told)

    def _put_whole(self, stage: int, layer: int, value: V) -> None:
        key = self._at.reduced(stage, layer)
        self._post.mailbox.put(key, value)
        self._post.pass_on(key)

    # ---- what an heir has to know -----------------------------------------------------------------------------------

    def is_lacking(self, duty: Duty) -> bool | None:
        """Whether a reducer of the stage still lacks the duty's pipeline; None: it has not said so yet."""
        at, plan = self._at, self._at.plan
        assert plan is not None
        unknown = False
        for layer in plan.stages[duty.stage].layers:
            key = at.reduced(duty.stage, layer)
            if key in self._post.mailbox:
                continue
            reducer = plan.stages[duty.stage].reducer_of(layer)
            if reducer == at.node:
                covered = duty.pipeline in self._post.mailbox.covers(key, self._pipelines)
            elif (told := self._post.told(reducer)) is None:
                unknown = True
                continue
            else:
                covered = told.committed > at.version or duty.pipeline in told.covers.get(layer, ())
            if not covered:
                return True
        return None if unknown else False

    @property
    def _pipelines(self) -> int:
        return self._at.plan.pipelines if self._at.plan is not None else 0

    def _tenure(self, duty: Duty) -> int:
        tenure = self._duties[duty].tenure
        assert tenure is not None, f"{duty} is another node's"
        return tenure
